"""Token lists of Arrow columns as flat arrays, without a copy where they lie in one chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raypack.collate import BatchError

Flat = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Values of all rows one after another, and the rows' lengths."""


def flat_column(table: pa.Table, name: str) -> Flat:
    """Return the tokens of a list column.

    Lists, large lists and lists of a fixed size are taken, sliced and chunked as they are, and Ray
    Data's tensor columns of one dimension.

    Args:
        table: rows of an Arrow batch.
        name: a column of lists of integers.

    Raises:
        BatchError: the column is missing, or a row or a value of it is null.
        TypeError: it does not hold lists of integers.
    """
    chunks = [_lists(name, chunk) for chunk in _column(table, name).chunks]
    flats = [_flat_chunk(name, chunk) for chunk in chunks if len(chunk)]
    if len(flats) == 1:
        return flats[0]
    if not flats:
        return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
    values, lengths = zip(*flats, strict=True)
    return np.concatenate(values), np.concatenate(lengths)


def integer_column(table: pa.Table, name: str) -> npt.NDArray[Any]:
    """Return a column of plain integers, (rows,).

    Raises:
        BatchError: the column is missing, or has nulls.
        TypeError: it does not hold integers.
    """
    column = _column(table, name)
    if not pa.types.is_integer(column.type):
        raise TypeError(f"column {name!r} must hold integers, got {column.type}")
    if column.null_count:
        raise BatchError(f"column {name!r} must have no nulls, got {column.null_count}; fill or drop them")
    values: npt.NDArray[Any] = column.to_numpy()
    return values


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise BatchError(f"the batch must have a column {name!r}, got {table.column_names}")
    return table.column(name)


def _lists(name: str, chunk: pa.Array) -> pa.Array:
    """Return a chunk as an array of lists: itself, or what an extension type stores."""
    while isinstance(chunk, pa.ExtensionArray):
        chunk = chunk.storage
    if pa.types.is_struct(chunk.type) and {"data", "shape"} <= {field.name for field in chunk.type}:
        chunk = _one_dimensional(name, chunk)
    kind = chunk.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not pa.types.is_integer(kind.value_type):
        raise TypeError(f"column {name!r} must hold lists of integers, got {kind}")
    if chunk.null_count:
        row = int(np.argmax(chunk.is_null().to_numpy(zero_copy_only=False)))
        raise BatchError(f"column {name!r} must have no null rows, got one at row {row} of a chunk; drop it")
    return chunk


def _one_dimensional(name: str, chunk: pa.StructArray) -> pa.Array:
    """Return the data of Ray Data's tensors of varying shapes, which must have one dimension each."""
    dimensions = chunk.field("shape").value_lengths().to_numpy(zero_copy_only=False)
    if len(dimensions) and not (dimensions == 1).all():
        raise TypeError(f"column {name!r} must hold tensors of one dimension, got {int(dimensions.max())}")
    return chunk.field("data")


def _flat_chunk(name: str, chunk: pa.Array) -> Flat:
    if pa.types.is_fixed_size_list(chunk.type):
        size = chunk.type.list_size
        start, stop = chunk.offset * size, (chunk.offset + len(chunk)) * size
        lengths = np.full(len(chunk), size, dtype=np.int64)
    else:
        offsets = chunk.offsets.to_numpy()
        start, stop = int(offsets[0]), int(offsets[-1])
        lengths = np.diff(offsets)
    values = chunk.values.slice(start, stop - start)
    if values.null_count:
        raise BatchError(f"column {name!r} must have no null tokens, got {values.null_count}; fill them")
    return values.to_numpy(zero_copy_only=True), lengths
