"""The Arrow store: examples by index, in any order, from memory-mapped shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raypack.arguments import integer, type_name
from raypack.batching.lengths import LengthTable
from raypack.errors import SourceError
from raypack.source.files import SourceFiles, read_manifest
from raypack.source.job_folder import refuse_job_folder
from raypack.source.location import locate
from raypack.source.manifest import Extreme, Scalar, SourceManifest
from raypack.source.rows import Rows
from raypack.source.shards import Shard, table_of

Indices = Sequence[int] | NDArray[np.integer[Any]]


def open_source(path: str | os.PathLike[str]) -> ArrowSource:
    """Open a source; nothing but its manifest and the sizes of its files is read.

    Args:
        path: Its folder, as a path or the URI of any file system.

    Raises:
        TypeError: ``path`` is neither a str nor a path object.
        SourceError: there is no finished source, its manifest is damaged, a file is missing or has
            another size (the message names the first such file), or it lies in the working directory
            of a Ray job, which vanishes with the job.
    """
    folder = locate(path)
    refuse_job_folder(folder.uri)
    return ArrowSource(SourceFiles(folder, read_manifest(folder)))


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
    those of a remote source are copied to a node-local cache then. Safe to use from several threads.
    """

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        manifest = files.manifest
        self._first_rows = np.cumsum([0, *(shard.examples for shard in manifest.shards)], dtype=np.int64)
        self._shards: list[Shard | None] = [None] * len(manifest.shards)
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
        """Return one example as views of the shard: ``input_ids`` and, where there are any, ``labels``.

        Raises:
            TypeError: ``index`` is no integer.
            IndexError: it lies outside [0, len).
        """
        row = integer("index", index, error=SourceError)
        if not 0 <= row < len(self):
            raise IndexError(f"index must lie in [0, {len(self)}), got {row}")
        rows = np.array([row])
        [(shard, start, end)] = self._places(rows, self._length_array[rows])
        example = {"input_ids": shard.input_ids[start:end]}
        if shard.labels is not None:
            example["labels"] = shard.labels[start:end]
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
        places = self._places(rows, lengths)
        input_ids = _join([shard.input_ids[start:end] for shard, start, end in places])
        if not self.has_labels:
            return input_ids, lengths, None
        labels = [shard.labels[start:end] for shard, start, end in places if shard.labels is not None]
        return input_ids, lengths, _join(labels)

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

    def _shard(self, number: int) -> Shard:
        shard = self._shards[number]
        if shard is None:
            # Two threads may both map it; either mapping serves.
            shard = self._shards[number] = self._files.shard(number)
        return shard

    def _places(self, rows: NDArray[np.int64], lengths: NDArray[np.int32]) -> list[tuple[Shard, int, int]]:
        """Return each row's shard, start and end there, checked against the length table."""
        numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        places = []
        # Plain integers, row by row: as fast whether the rows share a shard or each has its own.
        for number, row in zip(numbers.tolist(), (rows - self._first_rows[numbers]).tolist(), strict=True):
            shard = self._shards[number] or self._shard(number)
            places.append((shard, shard.edges[row], shard.edges[row + 1]))
        for at, ((shard, start, end), length) in enumerate(zip(places, lengths.tolist(), strict=True)):
            if end - start != length or start < 0 or end > shard.edges[-1]:
                file = self.manifest.shards[int(numbers[at])].file
                raise SourceError(
                    f"example {int(rows[at])} lies at tokens {start} to {end} of {file}, which does not "
                    f"agree with {self.manifest.lengths.file}; restore {self._files.folder.label}"
                )
        return places


def _facts(extreme: Extreme | None) -> tuple[int | None, int | None]:
    return (None, None) if extreme is None else (extreme.length, extreme.index)


def _join(pieces: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
