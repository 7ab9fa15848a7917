"""Reads the examples of a chunk: what every kind of row has in common, and rows that need a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from raypack.data.encoders.examples import Examples
from raypack.data.encoders.text import RowEncoder
from raypack.data.formats.columns import RowColumns
from raypack.data.formats.row import Piece, Row, RowFault
from raypack.data.formats.rows import read_rows
from raypack.data.ingest.counts import PrepareCounts
from raypack.source.manifest.record import Scalar

_GROUP_CHARACTERS = 1 << 20
_GROUP_ROWS = 1024

Group = TypeVar("Group")


class ExampleReader(Protocol[Group]):
    """Reads examples in groups; made by the driver, sent to each node once.

    Attributes:
        record: What the manifest says of how they are made.
        has_labels: Whether they have labels.
    """

    record: dict[str, Scalar]
    has_labels: bool

    def groups(self, pieces: Sequence[Piece]) -> Iterator[Group]:
        """Yield what is encoded at once.

        Raises:
            RowFault: the next row cannot be read; what comes before it was yielded.
        """
        ...

    def encode(self, group: Group, counts: PrepareCounts) -> Examples:
        """Return the example of each row of a group.

        Raises:
            RowFault: a row cannot be encoded.
        """
        ...

    def singles(self, group: Group) -> list[Group]:
        """Return each row of a group as a group of its own."""
        ...


class RowReader:
    """Reads rows and encodes them."""

    def __init__(self, columns: RowColumns, encoder: RowEncoder) -> None:
        self._columns = columns
        self._encoder = encoder
        self.record = encoder.record
        self.has_labels = encoder.has_labels

    def groups(self, pieces: Sequence[Piece]) -> Iterator[list[Row]]:
        """Yield rows in groups that a tokenizer takes at once."""
        group: list[Row] = []
        size = 0
        try:
            for piece in pieces:
                for row in read_rows(piece, self._columns):
                    group.append(row)
                    size += _size(row.fields.values())
                    if size >= _GROUP_CHARACTERS or len(group) == _GROUP_ROWS:
                        yield group
                        group, size = [], 0
        except RowFault:
            # What comes before the bad row may hold a fault that comes first.
            if group:
                yield group
            raise
        if group:
            yield group

    def encode(self, group: list[Row], counts: PrepareCounts) -> Examples:
        """Return the example of each row."""
        return self._encoder.encode(group, counts)

    def singles(self, group: list[Row]) -> list[list[Row]]:
        """Return each row alone."""
        return [[row] for row in group]


def _size(values: Any) -> int:
    return sum(len(value) for value in values if isinstance(value, str))
