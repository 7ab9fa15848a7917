"""An original file of an index, read in parts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import pyarrow as pa

from raypack.errors import SourceError
from raypack.source.paths.location import Location


class Original(ABC):
    """One file, opened; safe to use from several threads.

    Attributes:
        name: The file as messages name it.
        is_mapped: Whether it is memory-mapped; what it holds may have to be decoded nevertheless.
    """

    is_mapped = False

    def __init__(self, place: Location, columns: Sequence[str]) -> None:
        self.name = place.label
        self._place = place
        self._columns = list(columns)
        self._lock = threading.Lock()

    @abstractmethod
    def column_names(self) -> list[str]:
        """Return the names of all columns."""

    @abstractmethod
    def parts(self) -> Iterator[int]:
        """Yield what finds each part, in order."""

    @abstractmethod
    def read(self, part: int) -> tuple[pa.RecordBatch, bool]:
        """Return the columns of a part, and whether they are memory-mapped.

        Raises:
            SourceError: the part is too large, or the file damaged.
        """


def unreadable(name: str, reason: object) -> SourceError:
    """Return the error of a file that is damaged or gone."""
    return SourceError(f"{name} cannot be read: {reason}; restore the file, and index it again if it changed")
