"""Raw int32 tables of a source: one value an example, streamed out and memory-mapped in."""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from raypack.batching.lengths import lengths_digest
from raypack.source.manifest.record import Extreme, TableEntry
from raypack.source.paths.location import Location

_BLOCK_BYTES = 8 << 20


class TableWriter:
    """Writes one table as it comes, in order, and learns its sum and extremes on the way."""

    def __init__(self, folder: Location, name: str) -> None:
        self._folder = folder
        self._name = name
        # The digest is taken of the whole table in the end, so a remote one waits here until then.
        self._file: IO[bytes] = (
            open(folder.child(name), "x+b") if folder.is_local else tempfile.TemporaryFile()  # noqa: SIM115
        )
        self.count = 0
        self.total = 0
        self.minimum: Extreme | None = None
        self.maximum: Extreme | None = None

    def append(self, values: NDArray[np.int32]) -> None:
        """Add values, int32 (n,)."""
        if not len(values):
            return
        data = np.ascontiguousarray(values, "<i4")
        self._file.write(data.data)
        low, high = int(np.argmin(data)), int(np.argmax(data))
        # Strict comparisons keep the first of equals.
        if self.minimum is None or data[low] < self.minimum.length:
            self.minimum = Extreme(length=int(data[low]), index=self.count + low)
        if self.maximum is None or data[high] > self.maximum.length:
            self.maximum = Extreme(length=int(data[high]), index=self.count + high)
        self.total += int(data.sum(dtype=np.int64))
        self.count += len(data)

    def finish(self) -> TableEntry:
        """End the file and return its entry in the manifest."""
        self._file.flush()
        self._file.seek(0)
        digest = lengths_digest(_blocks(self._file))
        if not self._folder.is_local:
            self._file.seek(0)
            with self._folder.filesystem.open_output_stream(self._folder.child(self._name)) as sink:
                shutil.copyfileobj(self._file, sink, _BLOCK_BYTES)
        self.close()
        return TableEntry(file=self._name, bytes=4 * self.count, digest=digest)

    def close(self) -> None:
        """Close the file, whatever it holds; closing twice is harmless."""
        self._file.close()


def digest_of_table(path: str) -> str:
    """Return the digest of a table's file."""
    with open(path, "rb") as file:
        return lengths_digest(_blocks(file))


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


def _blocks(file: IO[bytes]) -> Iterator[NDArray[np.int32]]:
    while block := file.read(_BLOCK_BYTES):
        yield np.frombuffer(block, "<i4")
