"""Reads rows of Parquet files, and names the file or the row that is bad."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raypack.data.formats.byte_stream import check_size, open_file
from raypack.data.formats.columns import RowColumns
from raypack.data.formats.inputs import InputFile
from raypack.data.formats.row import Piece, Row, RowFault
from raypack.errors import PrepareError

_BATCH_ROWS = 1024
_BROKEN = "the file is broken, or no Parquet file as its name says"


def group_sizes(file: InputFile) -> list[int]:
    """Return the bytes of each row group before compression.

    Raises:
        PrepareError: the file is damaged.
    """
    with _opened(file) as parquet:
        metadata = parquet.metadata
        return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]


def column_names(file: InputFile) -> list[str]:
    """Return the names of a file's columns.

    Raises:
        PrepareError: the file is damaged.
    """
    with _opened(file) as parquet:
        return list(parquet.schema_arrow.names)


def read_parquet(piece: Piece, columns: RowColumns) -> Iterator[Row]:
    """Yield the rows of a piece.

    Raises:
        RowFault: a column is missing, or the file is damaged.
    """
    for first, batch in read_record_batches(piece, columns):
        for number, fields in enumerate(_by_role(batch, columns).to_pylist(), first):
            yield Row(fields, piece, number)


def read_record_batches(piece: Piece, columns: RowColumns) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the number of the first row, counted from 0 in the file, and the columns, of each batch.

    Raises:
        RowFault: a column is missing, or the file is damaged.
    """
    with _reading(piece) as parquet:
        there = parquet.schema_arrow.names
        if missing := columns.missing(there):
            raise RowFault(piece, None, missing)
        first, last = piece.groups or (0, parquet.num_row_groups)
        number = sum(parquet.metadata.row_group(group).num_rows for group in range(first))
        batches = parquet.iter_batches(
            batch_size=_BATCH_ROWS,
            row_groups=range(first, last),
            columns=[name for name in columns.names.values() if name in there],
        )
        for batch in batches:
            yield number, batch
            number += batch.num_rows


def _by_role(batch: pa.RecordBatch, columns: RowColumns) -> pa.RecordBatch:
    present = {role: name for role, name in columns.names.items() if name in batch.schema.names}
    arrays: list[Any] = [batch.column(name) for name in present.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(present))


@contextmanager
def _opened(file: InputFile) -> Iterator[pq.ParquetFile]:
    try:
        with _reading(Piece(file, 0, file.size)) as parquet:
            yield parquet
    except RowFault as fault:
        raise PrepareError(f"{file.name}: {fault.reason}") from fault


@contextmanager
def _reading(piece: Piece) -> Iterator[pq.ParquetFile]:
    """Open a file for the time of a block; what is wrong with it is a fault of the piece."""
    with open_file(piece.file) as source:
        check_size(piece, source.size())
        try:
            # A little at a time: a row group may be larger than memory.
            yield pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)
        except (pa.ArrowException, OSError) as error:
            raise RowFault(piece, None, f"{_BROKEN}: {error}") from error
