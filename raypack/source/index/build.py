"""Indexing files that are there already: where each example lies, without writing its tokens again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raypack.arguments import choice, optional_integer, shown, text
from raypack.choices import IGNORE_INDEX, INT32_MAX, OVERSIZE
from raypack.errors import SourceError
from raypack.source.index.find import find_originals
from raypack.source.index.original import Original
from raypack.source.index.originals import open_original
from raypack.source.index.views import cut_views, first_over
from raypack.source.manifest.record import OriginalFile, SegmentEntry
from raypack.source.manifest.writer import ManifestWriter
from raypack.source.paths.listing import Paths
from raypack.source.paths.new_folder import new_folder
from raypack.source.store.arrow_source import ArrowSource, open_source
from raypack.source.store.rows import check_values, read_lists
from raypack.source.store.shards import digest_of_columns

_COUNTS = ("files", "rows", "empty", "split", "pieces", "truncated", "dropped", "examples", "tokens")


def index_source(
    paths: Paths,
    column: str = "input_ids",
    labels_column: str | None = None,
    *,
    out: str | os.PathLike[str],
    max_length: int | None = None,
    oversize: str = "error",
) -> ArrowSource:
    """Make a source of tokenised files that stay where they are and as they are.

    The files are read once, to learn the lengths and to hash what they hold. The source keeps their sizes and
    dates; a file that is missing or was written again is refused when the source is opened. Arrow files on a
    path of this machine are memory-mapped. Parquet is decoded a row group at a time: with it, plan with
    ``shuffle="block"``, or `prepare` it with ``rows="tokens"`` into a store.

    Args:
        paths: Parquet and Arrow IPC files, folders and patterns of them, and folders of ``save_to_disk`` of
            Hugging Face datasets; paths or URIs that every node sees.
        column: The column of the tokens: lists of integers.
        labels_column: The column of the labels; None where there are none.
        out: The folder to make; nothing may lie there.
        max_length: Tokens of an example at the most; None for no limit.
        oversize: What happens to a longer row, as a view of it: ``error``, ``split``, ``truncate`` or
            ``drop``; all but the first need ``max_length``.

    Returns:
        The source, opened; its manifest holds the counts. Rows without tokens are left out.

    Raises:
        TypeError: an argument has a wrong type.
        SourceError: ``out`` exists already, a file cannot be read, lacks a column, or holds a bad value.
            Nothing is left at ``out``.
    """
    job = IndexJob(column=column, labels_column=labels_column, max_length=max_length, oversize=oversize)
    with new_folder(out) as folder, ManifestWriter(folder) as manifest:
        originals = find_originals(paths)
        counts = dict.fromkeys(_COUNTS, 0) | {"files": len(originals)}
        for number, entry in enumerate(originals):
            for segment in job.segments(number, entry, counts):
                if segment.entry.examples:
                    manifest.add_segment(segment.entry, segment.starts, segment.lengths, segment.supervised)
        manifest.finish_index(
            originals,
            job.column,
            job.labels_column,
            prepared={"max_length": job.max_length, "oversize": job.oversize if job.max_length else None},
            counts=counts,
        )
        return open_source(out)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment and the tables of its examples, int32 (n,) each.

    Attributes:
        entry: What the manifest says of it.
        starts: The first token of each example in the segment.
        lengths: Its tokens.
        supervised: Its label tokens; the first never counts.
    """

    entry: SegmentEntry
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    supervised: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexJob:
    """What to index; see `index_source`."""

    column: str
    labels_column: str | None
    max_length: int | None
    oversize: str

    def __post_init__(self) -> None:
        text("column", self.column, error=SourceError)
        if self.labels_column is not None:
            text("labels_column", self.labels_column, error=SourceError)
        choice("oversize", self.oversize, OVERSIZE, error=SourceError)
        limit = optional_integer(
            "max_length", self.max_length, minimum=1, maximum=INT32_MAX, error=SourceError
        )
        object.__setattr__(self, "max_length", limit)
        if limit is None and self.oversize != "error":
            raise SourceError(
                f"oversize {self.oversize!r} needs max_length, the most tokens of an example; give it too"
            )

    @property
    def columns(self) -> list[str]:
        """The columns to read, the tokens first."""
        return [self.column] if self.labels_column is None else [self.column, self.labels_column]

    def segments(self, number: int, entry: OriginalFile, counts: dict[str, int]) -> Iterator[Segment]:
        """Yield the segments of a file, and count what happens to its rows.

        Raises:
            SourceError: the file cannot be read, lacks a column, or holds a bad value.
        """
        original = open_original(entry, self.columns)
        self._check_columns(original)
        first = 0
        for part in original.parts():
            batch, _ = original.read(part)
            try:
                yield self._segment(number, part, batch, first, counts)
            except SourceError as error:
                raise SourceError(f"{original.name}: {error}") from error
            first += batch.num_rows

    def _check_columns(self, original: Original) -> None:
        there = original.column_names()
        for name in self.columns:
            if name not in there:
                raise SourceError(
                    f"{original.name} has no column {name!r}, there are {shown(there)}; name the one "
                    f"with the {'tokens by column' if name == self.column else 'labels by labels_column'}"
                )

    def _segment(
        self, number: int, part: int, batch: pa.RecordBatch, first: int, counts: dict[str, int]
    ) -> Segment:
        lengths, ids = read_lists(batch, self.column, first, unit="row")
        check_values(self.column, ids, lengths, ids < 0, "at least 0", first, unit="row")
        labels = self._labels(batch, lengths, first)
        self._check_lengths(lengths, ids, first)
        views = cut_views(lengths, self.max_length, self.oversize)
        counts["rows"] += len(lengths)
        counts["examples"] += len(views.lengths)
        counts["tokens"] += int(views.lengths.sum())
        for name, value in views.counts.items():
            counts[name] += value
        entry = SegmentEntry(
            original=number,
            part=part,
            examples=len(views.lengths),
            tokens=int(views.lengths.sum()),
            values=len(ids),
            digest=digest_of_columns(ids, labels),
        )
        trained = views.lengths - 1
        if labels is not None:
            # (t + 1,) label tokens before each token.
            before = np.concatenate([[0], np.cumsum(labels != IGNORE_INDEX)])
            trained = before[views.starts + views.lengths] - before[views.starts + 1]
        return Segment(
            entry, views.starts.astype(np.int32), views.lengths.astype(np.int32), trained.astype(np.int32)
        )

    def _labels(
        self, batch: pa.RecordBatch, lengths: NDArray[np.int32], first: int
    ) -> NDArray[np.int32] | None:
        name = self.labels_column
        if name is None:
            return None
        own, labels = read_lists(batch, name, first, unit="row")
        if not np.array_equal(own, lengths):
            row = int(np.argmax(own != lengths))
            raise SourceError(
                f"{name} must be as long as {self.column}; row {first + row} has {int(own[row])} labels and "
                f"{int(lengths[row])} tokens"
            )
        wrong = (labels < 0) & (labels != IGNORE_INDEX)
        rule = f"at least 0, or {IGNORE_INDEX} (not trained)"
        check_values(name, labels, lengths, wrong, rule, first, unit="row")
        return labels

    def _check_lengths(self, lengths: NDArray[np.int32], ids: NDArray[np.int32], first: int) -> None:
        if len(ids) > INT32_MAX:
            raise SourceError(f"rows {first} on hold {len(ids)} tokens in one batch; write smaller batches")
        if self.oversize != "error" or self.max_length is None:
            return
        row = first_over(lengths, self.max_length)
        if row is not None:
            raise SourceError(
                f"row {first + row} has {int(lengths[row])} tokens, more than max_length {self.max_length}; "
                "raise it, or choose oversize split, truncate or drop"
            )
