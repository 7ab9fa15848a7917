"""The tables and the manifest of a new source, the manifest last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

from numpy import int32
from numpy.typing import NDArray

from raypack.source.manifest.codec import dump_manifest
from raypack.source.manifest.record import (
    LENGTHS_FILE,
    MANIFEST_FILE,
    STARTS_FILE,
    SUPERVISED_FILE,
    IndexEntry,
    OriginalFile,
    Scalar,
    SegmentEntry,
    ShardEntry,
    SourceManifest,
)
from raypack.source.paths.location import Location
from raypack.source.store.tables import TableWriter


class ManifestWriter:
    """Gathers the entries of shards in the order of the examples, writes tables and manifest.

    A context manager: leaving it closes the tables, whatever happened.
    """

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._shards: list[ShardEntry] = []
        self._segments: list[SegmentEntry] = []
        self._lengths = TableWriter(folder, LENGTHS_FILE)
        self._supervised = TableWriter(folder, SUPERVISED_FILE)
        self._starts: TableWriter | None = None

    def __enter__(self) -> ManifestWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for table in (self._lengths, self._supervised, self._starts):
            if table is not None:
                table.close()

    def add(self, shard: ShardEntry, lengths: NDArray[int32], supervised: NDArray[int32]) -> None:
        """Add the next shard with the lengths and the label tokens of its examples, int32 (n,) each."""
        self._shards.append(shard)
        self._lengths.append(lengths)
        self._supervised.append(supervised)

    def add_segment(
        self,
        segment: SegmentEntry,
        starts: NDArray[int32],
        lengths: NDArray[int32],
        supervised: NDArray[int32],
    ) -> None:
        """Add the next segment of an index, with the first token of each example too, int32 (n,) each."""
        self._segments.append(segment)
        self._starts_table.append(starts)
        self._lengths.append(lengths)
        self._supervised.append(supervised)

    def finish_index(
        self,
        originals: Sequence[OriginalFile],
        column: str,
        labels_column: str | None,
        *,
        prepared: Mapping[str, Scalar],
        counts: Mapping[str, int],
    ) -> SourceManifest:
        """Close the tables and write the manifest of an index, in one write."""
        index = IndexEntry(
            originals=tuple(originals),
            column=column,
            labels_column=labels_column,
            starts=self._starts_table.finish(),
        )
        return self._finish(labels_column is not None, prepared, counts, index)

    def finish(
        self, *, has_labels: bool, prepared: Mapping[str, Scalar], counts: Mapping[str, int]
    ) -> SourceManifest:
        """Close the tables and write the manifest, in one write: from here on the folder is a source."""
        return self._finish(has_labels, prepared, counts, None)

    @property
    def _starts_table(self) -> TableWriter:
        if self._starts is None:
            self._starts = TableWriter(self._folder, STARTS_FILE)
        return self._starts

    def _finish(
        self,
        has_labels: bool,
        prepared: Mapping[str, Scalar],
        counts: Mapping[str, int],
        index: IndexEntry | None,
    ) -> SourceManifest:
        manifest = SourceManifest(
            examples=self._lengths.count,
            tokens=self._lengths.total,
            supervised_tokens=self._supervised.total,
            has_labels=has_labels,
            shards=tuple(self._shards) if index is None else tuple(self._segments),
            lengths=self._lengths.finish(),
            supervised=self._supervised.finish(),
            shortest=self._lengths.minimum,
            longest=self._lengths.maximum,
            prepared=prepared,
            counts=counts,
            index=index,
        )
        with self._folder.filesystem.open_output_stream(self._folder.child(MANIFEST_FILE)) as sink:
            sink.write(dump_manifest(manifest))
        return manifest
