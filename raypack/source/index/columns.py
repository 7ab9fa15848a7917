"""Values of list columns as flat arrays, as the file holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raypack.errors import SourceError

_INT32 = np.iinfo(np.int32)


def values_of(batch: pa.RecordBatch, name: str, where: str) -> NDArray[np.integer[Any]]:
    """Return all values (t,) of a list column, without a copy where they lie in one piece.

    Args:
        batch: The rows.
        name: Name of the column.
        where: The file, for messages.

    Raises:
        SourceError: it is no column of lists of integers, or holds nulls.
    """
    column = batch.column(name)
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not pa.types.is_integer(kind.value_type):
        raise SourceError(f"{where}: {name} must be lists of integers, got {kind}; index the file again")
    values = column.flatten()
    if column.null_count or values.null_count:
        raise SourceError(f"{where}: {name} must have no nulls; restore the file, or index it again")
    return values.to_numpy()


def narrow(values: NDArray[np.integer[Any]], name: str, where: str) -> NDArray[np.int32]:
    """Return values (t,) as int32.

    Raises:
        SourceError: one does not fit.
    """
    if len(values) and (values.max() > _INT32.max or values.min() < _INT32.min):
        raise SourceError(f"{where}: {name} must fit int32; restore the file, or index it again")
    return values.astype(np.int32, copy=False)
