"""A row of the input, its location, and its fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raypack.data.formats.inputs import InputFile


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file: the rows that begin in the bytes [start, stop).

    Attributes:
        file: The file.
        start: First byte.
        stop: Byte past the last.
        groups: The row groups [first, last) of a Parquet file that was cut; None for all of a file.
    """

    file: InputFile
    start: int
    stop: int
    groups: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row and where it came from.

    Attributes:
        fields: Its values by what they are for (``text``, ``prompt``, ``messages`` and so on).
        piece: The piece it began in.
        number: In a Parquet file its row, counted from 0 in the file; elsewhere its line, counted from 1
            from the first line that begins in the piece.
    """

    fields: Mapping[str, Any]
    piece: Piece
    number: int

    def text(self, role: str, columns: Mapping[str, str]) -> str:
        """Return a field that must be text.

        Args:
            role: What it is for.
            columns: The name of each role's column, for the message.

        Raises:
            RowFault: it is none.
        """
        value = self.fields[role]
        if not isinstance(value, str):
            kind = type(value).__name__
            raise RowFault(self.piece, self.number, f"field {columns[role]!r} must be a string, got {kind}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RowFault(
                self.piece,
                self.number,
                f"field {columns[role]!r} holds half a surrogate pair, which is no text",
            ) from error
        return value

    def fault(self, reason: str) -> RowFault:
        """Return the fault of this row."""
        return RowFault(self.piece, self.number, reason)


class RowFault(Exception):  # noqa: N818
    """A row that cannot be prepared; carries its place to the driver.

    Attributes:
        piece: The piece it began in.
        number: Its number there, as `Row.number`; None where the whole file is at fault.
        reason: What is wrong.
    """

    def __init__(self, piece: Piece, number: int | None, reason: str) -> None:
        super().__init__(reason)
        self.piece = piece
        self.number = number
        self.reason = reason
