"""A Parquet file as an original: row groups, decoded when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from raypack.errors import SourceError
from raypack.source.index.original import Original, unreadable
from raypack.source.paths.location import Location

MAXIMUM_VALUES = 1 << 28
"""Tokens of a row group at the most, which is read whole: 1 GiB of int32."""


class ParquetOriginal(Original):
    """A Parquet file; its parts are its row groups, decoded when they are read."""

    def __init__(self, place: Location, columns: Sequence[str]) -> None:
        super().__init__(place, columns)
        self._file = pq.ParquetFile(place.filesystem.open_input_file(place.path))

    def column_names(self) -> list[str]:
        """Return the names of all columns."""
        return list(self._file.schema_arrow.names)

    def parts(self) -> Iterator[int]:
        """Yield the numbers of the row groups."""
        yield from range(self._file.num_row_groups)

    def read(self, part: int) -> tuple[pa.RecordBatch, bool]:
        """Return the columns of a row group."""
        try:
            with self._lock:
                self._check_size(part)
                table = self._file.read_row_group(part, columns=self._columns, use_threads=False)
            batches = table.combine_chunks().to_batches()
        except (pa.ArrowException, OSError, LookupError) as error:
            raise unreadable(self.name, error) from error
        if not batches:
            return pa.RecordBatch.from_pylist([], schema=table.schema), False
        return batches[0], False

    def _check_size(self, part: int) -> None:
        group = self._file.metadata.row_group(part)
        for number in range(group.num_columns):
            column = group.column(number)
            if column.path_in_schema.split(".", 1)[0] in self._columns and column.num_values > MAXIMUM_VALUES:
                raise SourceError(
                    f"{self.name} has a row group of {column.num_values} tokens, more than {MAXIMUM_VALUES}, "
                    "and each is read whole: write it with smaller row groups, or prepare it as rows 'tokens'"
                )
