"""Reads rows that are tokenised already, as flat Arrow arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raypack.choices import IGNORE_INDEX
from raypack.data.encoders.examples import Examples
from raypack.data.formats.columns import RowColumns
from raypack.data.formats.inputs import InputFile
from raypack.data.formats.parquet import column_names, read_record_batches
from raypack.data.formats.row import Piece, RowFault
from raypack.data.ingest.counts import PrepareCounts
from raypack.errors import PrepareError, SourceError
from raypack.source.manifest.record import Scalar
from raypack.source.store.rows import read_lists


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Consecutive rows of a Parquet file.

    Attributes:
        piece: Where they stand.
        first: The number of the first, from 0 in the file.
        batch: Their columns.
    """

    piece: Piece
    first: int
    batch: pa.RecordBatch

    def fault(self, row: int, reason: str) -> RowFault:
        """Return the fault of a row, counted from the first here."""
        return RowFault(self.piece, self.first + row, reason)


class TokenReader:
    """Reads ``input_ids`` and, where there are any, ``labels``; leaves out what ``attention_mask`` hides."""

    def __init__(self, columns: RowColumns, files: Sequence[InputFile]) -> None:
        """Look into the first file for labels.

        Raises:
            PrepareError: a file is no Parquet file, or the first one is damaged or lacks a column.
        """
        other = next((file for file in files if file.format.kind != "parquet"), None)
        if other is not None:
            raise PrepareError(
                f"{other.name} is no Parquet file, and rows 'tokens' are read from Parquet alone; "
                "convert it, or leave it out"
            )
        there = column_names(files[0])
        if missing := columns.missing(there):
            raise PrepareError(f"{files[0].name}: {missing}")
        self._columns = columns
        self._first_file = files[0].name
        self.has_labels = columns.names["labels"] in there
        self.record: dict[str, Scalar] = {
            "tokenizer": None,
            "special_tokens": "as given",
            "rows": "tokens",
            **{f"{role}_field": name for role, name in columns.names.items()},
        }

    def groups(self, pieces: Sequence[Piece]) -> Iterator[TokenRows]:
        """Yield the batches of rows."""
        for piece in pieces:
            for first, batch in read_record_batches(piece, self._columns):
                self._check_labels(piece, batch.schema.names)
                yield TokenRows(piece, first, batch)

    def singles(self, group: TokenRows) -> list[TokenRows]:
        """Return each row alone."""
        return [
            TokenRows(group.piece, group.first + row, group.batch.slice(row, 1))
            for row in range(group.batch.num_rows)
        ]

    def encode(self, group: TokenRows, counts: PrepareCounts) -> Examples:
        """Return the example of each row; one whose tokens are all hidden is empty."""
        lengths, ids = self._lists(group, "input_ids")
        labels = self._beside(group, "labels", lengths) if self.has_labels else None
        if self._columns.names["attention_mask"] in group.batch.schema.names:
            mask = self._beside(group, "attention_mask", lengths)
            _check(group, "attention_mask", mask, lengths, (mask != 0) & (mask != 1), "0 or 1")
            shown = mask == 1
            ends = np.concatenate([[0], np.cumsum(shown, dtype=np.int64)])[np.cumsum([0, *lengths])]
            lengths, ids = np.diff(ends), ids[shown]
            labels = None if labels is None else labels[shown]
        _check(group, "input_ids", ids, lengths, ids < 0, "at least 0")
        if labels is not None:
            wrong = (labels < 0) & (labels != IGNORE_INDEX)
            _check(group, "labels", labels, lengths, wrong, f"at least 0, or {IGNORE_INDEX}")
        return Examples(lengths.astype(np.int64), ids, labels, group.fault)

    def _lists(self, group: TokenRows, role: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        try:
            return read_lists(group.batch, self._columns.names[role], group.first, unit="row")
        except SourceError as error:
            raise RowFault(group.piece, None, str(error)) from error

    def _beside(self, group: TokenRows, role: str, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return a column that must be as long as the tokens, int32 (t,)."""
        own, values = self._lists(group, role)
        if not np.array_equal(own, lengths):
            row = int(np.argmax(own != lengths))
            raise group.fault(
                row,
                f"{role} must be as long as input_ids, got {int(own[row])} and {int(lengths[row])} tokens",
            )
        return values

    def _check_labels(self, piece: Piece, there: Sequence[str]) -> None:
        name = self._columns.names["labels"]
        if (name in there) != self.has_labels:
            has, lacks = (piece.file.name, self._first_file)
            if self.has_labels:
                has, lacks = lacks, has
            raise RowFault(
                piece, None, f"{has} has a column {name!r} and {lacks} has none; prepare the two on their own"
            )


def _check(
    group: TokenRows,
    role: str,
    values: NDArray[np.int32],
    lengths: NDArray[np.integer],
    wrong: NDArray[np.bool_],
    rule: str,
) -> None:
    if wrong.any():
        token = int(np.argmax(wrong))
        row = int(np.searchsorted(np.cumsum(lengths, dtype=np.int64), token, side="right"))
        raise group.fault(row, f"{role} must be {rule}, got {int(values[token])}")
