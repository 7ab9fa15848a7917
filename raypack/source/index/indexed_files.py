"""The files of an index: tables in its own folder, tokens in files that stay as they are."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from raypack.errors import SourceError
from raypack.source.index.columns import narrow, values_of
from raypack.source.index.original import Original
from raypack.source.index.originals import check_unchanged, open_original
from raypack.source.manifest.record import IndexEntry, SegmentEntry, SourceManifest
from raypack.source.paths.location import Location, locate
from raypack.source.store.files import SourceFiles
from raypack.source.store.shards import Shard, digest_of_columns

_OPEN_FILES = 64


class IndexedFiles(SourceFiles):
    """Reads segments of original files; opening it checks that none of these has changed."""

    def __init__(self, folder: Location, manifest: SourceManifest, index: IndexEntry) -> None:
        """Check size and date of every original.

        Raises:
            SourceError: naming the first that is missing or changed.
        """
        super().__init__(folder, manifest)
        self._index = index
        self._segments = [shard for shard in manifest.shards if isinstance(shard, SegmentEntry)]
        self._first_rows = np.cumsum([0, *(segment.examples for segment in self._segments)])
        self._names = [name for name in (index.column, index.labels_column) if name is not None]
        self._mapped: dict[int, Original] = {}
        self._open: OrderedDict[int, Original] = OrderedDict()
        self._lock = Lock()
        self._tables: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
        check_unchanged(index.originals)

    def shard(self, number: int) -> Shard:
        """Return a segment with the places of its examples."""
        entry = self._segments[number]
        input_ids, labels, is_mapped = self._columns(entry)
        rows = slice(self._first_rows[number], self._first_rows[number + 1])
        starts, lengths = (table[rows].astype(np.int64) for table in self._places())
        ends = starts + lengths
        if starts.min() < 0 or lengths.min() < 0 or ends.max() > len(input_ids):
            raise SourceError(
                f"{self._index.starts.file} of {self.folder.label} points outside {self.name_of(number)}; "
                "index the files again"
            )
        return Shard(memoryview(starts.data), memoryview(ends.data), input_ids, labels, is_mapped)

    def name_of(self, number: int) -> str:
        """Return the file and the part of a segment."""
        entry = self._segments[number]
        return f"part {entry.part} of {locate(self._index.originals[entry.original].uri).label}"

    def verify_shard(self, number: int) -> None:
        """Compare the digest of a segment with the manifest."""
        entry = self._segments[number]
        input_ids, labels, _ = self._columns(entry)
        if digest_of_columns(input_ids, labels) != entry.digest:
            raise SourceError(
                f"{self.name_of(number)} holds other tokens than when it was indexed; restore the file, "
                "or index it again"
            )

    def _columns(self, entry: SegmentEntry) -> tuple[NDArray[np.integer], NDArray[np.integer] | None, bool]:
        """Return tokens (t,), labels (t,) or None, and whether they are memory-mapped."""
        original = self._original(entry.original)
        batch, is_mapped = original.read(entry.part)
        arrays = [values_of(batch, name, original.name) for name in self._names]
        for name, array in zip(self._names, arrays, strict=True):
            if len(array) != entry.values:
                raise SourceError(
                    f"{original.name} must hold {entry.values} values of {name} in part {entry.part}, got "
                    f"{len(array)}; restore the file, or index it again"
                )
        if not is_mapped:
            arrays = [
                narrow(array, name, original.name) for name, array in zip(self._names, arrays, strict=True)
            ]
        return arrays[0], arrays[1] if len(arrays) > 1 else None, is_mapped

    def _places(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the tables of starts and lengths, int32 (n,) each."""
        if self._tables is None:
            self._tables = self.table(self._index.starts), self.table(self.manifest.lengths)
        return self._tables

    def _original(self, number: int) -> Original:
        """Return an original, opened: all that are memory-mapped stay so, of the others the last few."""
        with self._lock:
            original = self._mapped.get(number) or self._open.pop(number, None)
            if original is None:
                original = open_original(self._index.originals[number], self._names)
            if original.is_mapped:
                self._mapped[number] = original
                return original
            self._open[number] = original
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
            return original
