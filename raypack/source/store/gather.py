"""Examples out of several memory-mapped shards into one array, in one call.

Arrow copies them as the values of a view array (binary data by number of buffer and byte), which is cast
to an array of values in a row. No Python object is made for an example, and other threads run
meanwhile: also where the file has to be read from a disk first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raypack.source.store.shards import Shard

Columns: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.int32] | None]"
"""Tokens (t,) of examples, and their labels where there are any."""

_VIEW = np.dtype([("bytes", "<i4"), ("inlined", "<i4", (3,))])
"""A view: up to 12 bytes lie in it; else a prefix that nobody reads here, the buffer, the byte in it."""
_INLINED = 3
_MOST_BYTES = 2**31 - 1
_ROWS_A_SHARD = 16
"""Rows of a shard from which on its part of the work, whatever the number of rows, pays."""


def can_gather(shards: Sequence[Shard | None], rows: int) -> TypeGuard[Sequence[Shard]]:
    """Whether `gather` can take examples out of shards, and is the faster way.

    Args:
        shards: The shards; None is one that is not mapped yet.
        rows: Examples that are taken of all of them.
    """
    return len(shards) * _ROWS_A_SHARD <= rows > 0 and all(map(_has_plain_columns, shards))


def _has_plain_columns(shard: Shard | None) -> bool:
    if shard is None or not shard.is_mapped:
        return False
    columns = [shard.input_ids] if shard.labels is None else [shard.input_ids, shard.labels]
    return all(column.dtype == np.int32 and column.nbytes <= _MOST_BYTES for column in columns)


def spans(
    shards: Sequence[Shard],
    numbers: NDArray[np.int64],
    rows: NDArray[np.int64],
    lengths: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Look up where examples lie in their shards' columns.

    Args:
        shards: The shards.
        numbers: Which of them each example is in, (n,).
        rows: Its place there, (n,).
        lengths: Its tokens, (n,).

    Returns:
        Where each begins and ends, (n,), and those that have another length or lie outside.
    """
    starts, ends, sizes = (np.empty(len(rows), np.int64) for _ in range(3))
    for number, shard in enumerate(shards):
        here = np.flatnonzero(numbers == number)
        starts[here] = np.asarray(shard.starts)[rows[here]]
        ends[here] = np.asarray(shard.ends)[rows[here]]
        sizes[here] = len(shard.input_ids)
    wrong = (ends - starts != lengths) | (lengths < 0) | (starts < 0) | (ends > sizes)
    return starts, ends, np.flatnonzero(wrong)


def gather(
    shards: Sequence[Shard],
    numbers: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> Columns:
    """Return the columns of examples, one after another.

    Args:
        shards: Shards that can be gathered from.
        numbers: Which of them each example is in, (n,).
        starts: Where it begins in the columns, (n,); it must lie inside, which is not checked here.
        ends: Where it ends, (n,).
    """
    input_ids = _gather([shard.input_ids for shard in shards], numbers, starts, ends)
    labels = [shard.labels for shard in shards if shard.labels is not None]
    return input_ids, _gather(labels, numbers, starts, ends) if labels else None


def _gather(
    columns: Sequence[NDArray[Any]],
    numbers: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.int32]:
    lengths = ends - starts
    views = np.empty(len(numbers), _VIEW)
    views["bytes"] = 4 * lengths
    views["inlined"][:, 1], views["inlined"][:, 2] = numbers, 4 * starts
    for k in np.flatnonzero(lengths <= _INLINED).tolist():
        views["inlined"][k, : lengths[k]] = columns[numbers[k]][starts[k] : ends[k]]
    buffers = [None, pa.py_buffer(views), *map(pa.py_buffer, columns)]
    flat = pa.Array.from_buffers(pa.binary_view(), len(views), buffers).cast(pa.large_binary())
    return np.frombuffer(flat.buffers()[2], np.int32)


def join(pieces: Sequence[NDArray[Any]]) -> NDArray[np.int32]:
    """Return values one after another as int32; those of an index were found to fit when it was made."""
    return np.concatenate(pieces, dtype=np.int32, casting="unsafe") if pieces else np.zeros(0, np.int32)
