"""Raw int32 tables of a source: one value an example, streamed out and memory-mapped in."""

from __future__ import annotations

import hashlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raypack.source.location import Location
from raypack.source.manifest import Extreme, TableEntry


class TableWriter:
    """Writes one table as it comes, in order, and learns its digest and extremes on the way."""

    def __init__(self, folder: Location, name: str) -> None:
        self._name = name
        self._sink = folder.filesystem.open_output_stream(folder.child(name))
        self._digest = hashlib.sha256()
        self.count = 0
        self.total = 0
        self.minimum: Extreme | None = None
        self.maximum: Extreme | None = None

    def append(self, values: NDArray[np.int32]) -> None:
        """Add values, int32 (n,)."""
        if not len(values):
            return
        data = np.ascontiguousarray(values, "<i4")
        self._sink.write(data.data)
        self._digest.update(data.data)
        low, high = int(np.argmin(data)), int(np.argmax(data))
        # Strict comparisons keep the first of equals.
        if self.minimum is None or data[low] < self.minimum.length:
            self.minimum = Extreme(length=int(data[low]), index=self.count + low)
        if self.maximum is None or data[high] > self.maximum.length:
            self.maximum = Extreme(length=int(data[high]), index=self.count + high)
        self.total += int(data.sum(dtype=np.int64))
        self.count += len(data)

    def close(self) -> TableEntry:
        """End the file and return its entry in the manifest."""
        self._sink.close()
        return TableEntry(file=self._name, bytes=4 * self.count, digest=self._digest.hexdigest())

    def abandon(self) -> None:
        """Close the file without caring for what it holds; closing twice is harmless."""
        self._sink.close()


def map_table(path: str) -> NDArray[np.int32]:
    """Memory-map a table, int32 (n,), read-only; nothing of it is read."""
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            # An empty file cannot be mapped.
            empty = np.empty(0, np.int32)
            empty.flags.writeable = False
            return empty
        mapped: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, "<i4")
