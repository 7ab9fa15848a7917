"""A source: examples by index, in any order, from a store's shards or from the files of an index."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raypack.arguments import integer, type_name
from raypack.batching.lengths import LengthTable
from raypack.errors import SourceError
from raypack.source.index.indexed_files import IndexedFiles
from raypack.source.manifest.record import Extreme, Scalar, SourceManifest
from raypack.source.paths.job_folder import refuse_job_folder
from raypack.source.paths.location import locate
from raypack.source.store.files import SourceFiles, read_manifest
from raypack.source.store.gather import Columns, can_gather, gather, join, spans
from raypack.source.store.rows import Rows
from raypack.source.store.shard_cache import ShardCache
from raypack.source.store.shards import table_of
from raypack.source.store.stored_files import StoredFiles

Indices = Sequence[int] | NDArray[np.integer[Any]]
Part = NDArray[np.integer[Any]]
Asked = tuple[int, int, int]
"""A row: the number of its shard, its place in it, and its length."""


def open_source(path: str | os.PathLike[str]) -> ArrowSource:
    """Open a source; nothing but its manifest and the sizes and dates of its files is read.

    Args:
        path: Its folder, as a path or the URI of any file system.

    Raises:
        TypeError: ``path`` is neither a str nor a path object.
        SourceError: there is no finished source, its manifest is damaged, or a file is missing or has
            another size, or an indexed one was written again (the message names the first such file), or
            it lies in the working directory of a Ray job, which vanishes with the job.
    """
    folder = locate(path)
    refuse_job_folder(folder.uri)
    manifest = read_manifest(folder)
    if manifest.index is None:
        return ArrowSource(StoredFiles(folder, manifest))
    return ArrowSource(IndexedFiles(folder, manifest, manifest.index))


def _reopen(path: str, fingerprint: str) -> ArrowSource:
    """Open a source that was pickled by its path, if it still is the same."""
    source = open_source(path)
    if source.fingerprint != fingerprint:
        raise SourceError(
            f"source {source!r} had fingerprint {fingerprint} when it was sent here and has "
            f"{source.fingerprint} now; never change a source in use"
        )
    return source


class ArrowSource:
    """An immutable, ordered set of examples; made by `open_source`.

    It pickles as its path, so shipping it costs nothing. Shards are memory-mapped when first touched;
    those of a remote source are copied to a node-local cache then. An index reads Arrow files where they lie
    and decodes Parquet a row group at a time, of which it keeps a few. Safe to use from several threads.
    """

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        manifest = files.manifest
        self._first_rows = np.cumsum([0, *(shard.examples for shard in manifest.shards)], dtype=np.int64)
        self._shards = ShardCache(files.shard, len(manifest.shards))
        self._lengths: LengthTable | None = None
        self._length_values: NDArray[np.int32] | None = None
        self._supervised: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return self.manifest.examples

    def __repr__(self) -> str:
        return (
            f"ArrowSource({self._files.folder.label!r}, examples={len(self)}, tokens={self.manifest.tokens})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.fingerprint)

    @property
    def path(self) -> str:
        """The folder as an absolute path or URI."""
        return self._files.folder.uri

    @property
    def manifest(self) -> SourceManifest:
        """What the source holds and how it was made."""
        return self._files.manifest

    @property
    def fingerprint(self) -> str:
        """Digest (hex) of contents, lengths, schema and how the source was prepared."""
        return self._files.fingerprint

    @property
    def has_labels(self) -> bool:
        """Whether examples have labels of their own."""
        return self.manifest.has_labels

    @property
    def prefers_blocks(self) -> bool:
        """Whether one example costs the reading of many: then shuffle blocks.

        So it is far away, where whole shards are fetched, and in an index of Parquet.
        """
        index = self.manifest.index
        decodes = index is not None and any(original.kind == "parquet" for original in index.originals)
        return decodes or not self._files.folder.is_local

    @property
    def lengths(self) -> LengthTable:
        """Tokens of each example, memory-mapped; digest and extremes come from the manifest."""
        if self._lengths is None:
            minimum, minimum_index = _facts(self.manifest.shortest)
            maximum, maximum_index = _facts(self.manifest.longest)
            self._lengths = LengthTable(
                self._length_array,
                self.manifest.lengths.digest,
                minimum=minimum,
                minimum_index=minimum_index,
                maximum=maximum,
                maximum_index=maximum_index,
            )
        return self._lengths

    @property
    def supervised(self) -> NDArray[np.int32]:
        """Label tokens of each example, int32 (n,), memory-mapped and read-only.

        An example's first label never counts; without labels every other token does.
        """
        if self._supervised is None:
            self._supervised = self._files.table(self.manifest.supervised)
        return self._supervised

    def summary(self) -> dict[str, Any]:
        """Return the few facts that a checkpoint keeps, as plain JSON values; see `describe_change`."""
        manifest = self.manifest
        prepared: dict[str, Scalar] = dict(manifest.prepared)
        return {
            "fingerprint": self.fingerprint,
            "examples": manifest.examples,
            "tokens": manifest.tokens,
            "contents": manifest.contents,
            "lengths": manifest.lengths.digest,
            "supervised": manifest.supervised.digest,
            "schema": manifest.schema,
            "prepared": prepared,
        }

    def __getitem__(self, index: int) -> dict[str, NDArray[np.int32]]:
        """Return one example, int32 (t,), as views where possible: ``input_ids`` and any ``labels``.

        Raises:
            TypeError: ``index`` is no integer.
            IndexError: it lies outside [0, len).
        """
        row = integer("index", index, error=SourceError)
        if not 0 <= row < len(self):
            raise IndexError(f"index must lie in [0, {len(self)}), got {row}")
        rows = np.array([row])
        [input_ids], [labels] = self._parts(rows, self._length_array[rows])
        example = {"input_ids": _int32(input_ids)}
        if labels is not None:
            example["labels"] = _int32(labels)
        return example

    def take(self, indices: Indices) -> pa.Table:
        """Return examples in the order asked, as a table of ``large_list<int32>`` columns.

        Args:
            indices: Integers (n,) in [0, len); the same one may come several times.

        Raises:
            TypeError: ``indices`` are no integers.
            SourceError: an index is out of range, or a shard is damaged.
        """
        input_ids, lengths, labels = self.take_flat(indices)
        return table_of(Rows(lengths, input_ids, labels))

    def take_flat(
        self, indices: Indices
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32] | None]:
        """Return examples in the order asked, as flat arrays.

        Args:
            indices: Integers (n,) in [0, len); the same one may come several times.

        Returns:
            Tokens int32 (t,), lengths int32 (n,), and labels int32 (t,) or None.

        Raises:
            TypeError: ``indices`` are no integers.
            SourceError: an index is out of range, or a shard is damaged.
        """
        rows = self._rows(indices)
        lengths = self._length_array[rows]
        input_ids, labels = self._gathered(rows, lengths) or self._joined(rows, lengths)
        return input_ids, lengths, labels

    def verify_contents(self) -> None:
        """Read every file and compare its digest with the manifest.

        Raises:
            SourceError: naming the first file whose contents differ.
        """
        self._files.verify()

    @property
    def _length_array(self) -> NDArray[np.int32]:
        if self._length_values is None:
            self._length_values = self._files.table(self.manifest.lengths)
        return self._length_values

    def _rows(self, indices: Indices) -> NDArray[np.int64]:
        """Return indices as int64 (n,), each in range."""
        array = np.asarray(indices)
        if not array.size and array.ndim == 1:
            return np.zeros(0, np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise TypeError(
                f"indices must be a sequence of integers, got {type_name(indices)} of {array.dtype} "
                f"with shape {array.shape}"
            )
        outside = (array < 0) | (array >= len(self))
        if outside.any():
            raise SourceError(f"indices must lie in [0, {len(self)}), got {int(array[np.argmax(outside)])}")
        return array.astype(np.int64, copy=False)

    def _gathered(self, rows: NDArray[np.int64], lengths: NDArray[np.int32]) -> Columns | None:
        """Return the columns of rows, or None where they have to be taken row by row."""
        numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        distinct, which = np.unique(numbers, return_inverse=True)
        shards = [self._shards.mapped[number] for number in distinct.tolist()]
        if not can_gather(shards, len(rows)):
            return None
        starts, ends, wrong = spans(shards, which, rows - self._first_rows[numbers], lengths)
        for at in wrong:
            raise self._disagreement(int(rows[at]), int(numbers[at]), int(starts[at]), int(ends[at]))
        return gather(shards, which, starts, ends)

    def _joined(self, rows: NDArray[np.int64], lengths: NDArray[np.int32]) -> Columns:
        input_ids, labels = self._parts(rows, lengths)
        return join(input_ids), join(labels) if self.has_labels else None

    def _parts(self, rows: NDArray[np.int64], lengths: NDArray[np.int32]) -> tuple[list[Part], list[Any]]:
        """Return the tokens and the labels (None where there are none) of each row."""
        numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        inner = rows - self._first_rows[numbers]
        input_ids: list[Any] = [None] * len(rows)
        labels: list[Any] = [None] * len(rows)
        mapped = self._shards.mapped
        # Plain integers, row by row: as fast whether the rows share a shard or each has its own.
        asked = zip(numbers.tolist(), inner.tolist(), lengths.tolist(), strict=True)
        for at, (number, row, length) in self._in_turn(numbers, asked):
            shard = mapped[number] or self._shards.get(number)
            start, end = shard.starts[row], shard.ends[row]
            if end - start != length or length < 0 or start < 0 or end > len(shard.input_ids):
                raise self._disagreement(int(rows[at]), number, start, end)
            input_ids[at] = shard.input_ids[start:end]
            if shard.labels is not None:
                labels[at] = shard.labels[start:end]
            if not shard.is_mapped:
                # A view would keep a whole decoded shard in memory.
                input_ids[at] = input_ids[at].copy()
                labels[at] = None if labels[at] is None else labels[at].copy()
        return input_ids, labels

    def _in_turn(self, numbers: NDArray[np.int64], asked: Iterable[Asked]) -> Iterable[tuple[int, Asked]]:
        """Return what is asked with its place; in an index shard by shard, so that each is decoded once."""
        if self.manifest.index is None:
            return enumerate(asked)
        listed = list(asked)
        return [(at, listed[at]) for at in np.argsort(numbers, kind="stable").tolist()]

    def _disagreement(self, example: int, number: int, start: int, end: int) -> SourceError:
        return SourceError(
            f"example {example} lies at tokens {start} to {end} of {self._files.name_of(number)}, which does "
            f"not agree with {self.manifest.lengths.file}; restore {self._files.folder.label}"
        )


def _facts(extreme: Extreme | None) -> tuple[int | None, int | None]:
    return (None, None) if extreme is None else (extreme.length, extreme.index)


def _int32(values: Part) -> NDArray[np.int32]:
    return values.astype(np.int32, copy=False)
