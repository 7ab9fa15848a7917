"""Reads the rows of a piece, in any format."""

from __future__ import annotations

from collections.abc import Iterator

from raypack.data.formats.columns import RowColumns
from raypack.data.formats.lines import lines_before, read_lines, read_text
from raypack.data.formats.parquet import read_parquet
from raypack.data.formats.row import Piece, Row, RowFault


def read_rows(piece: Piece, columns: RowColumns) -> Iterator[Row]:
    """Yield the rows that begin in a piece.

    Raises:
        RowFault: the next row is bad.
    """
    kind = piece.file.format.kind
    if kind == "parquet":
        yield from read_parquet(piece, columns)
    elif kind == "jsonl":
        yield from read_lines(piece, columns)
    else:
        yield from read_text(piece)


def located(fault: RowFault) -> str:
    """Return a fault's message with the place in the file."""
    piece, number = fault.piece, fault.number
    if number is None:
        return f"{piece.file.name}: {fault.reason}"
    if piece.file.format.kind == "parquet":
        return f"{piece.file.name}, row {number} (from 0): {fault.reason}"
    return f"{piece.file.name}, line {number + lines_before(piece)}: {fault.reason}"
