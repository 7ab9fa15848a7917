"""Dense attention masks in numpy: what the faster ones on devices are measured by."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from raypack.arguments import integer, shown, type_name
from raypack.packing.segments import Integers, check_increasing, integers

MAXIMUM_CELLS = 2**31
_TILE = 128


def build_4d_attention_mask(
    seq_pos_ids: npt.NDArray[Any], dtype: npt.DTypeLike, *, maximum_cells: int = MAXIMUM_CELLS
) -> npt.NDArray[Any]:
    """Build the additive mask that keeps packed documents apart, causally.

    A token sees those at or before it that have its own id; an id that comes again later sees its
    earlier tokens too. Padding, id 0, sees nothing and is seen by nothing, itself included. Nothing
    larger than the mask is allocated on the way.

    Args:
        seq_pos_ids: (B, S) segment ids, from 1; 0 is padding.
        dtype: a numpy float dtype: class, instance or name.
        maximum_cells: refuse a mask of more cells; B counts as at least 1.

    Returns:
        (B, 1, S, S) of ``dtype``: 0 where a query (row) may attend to a key (column), elsewhere the
        dtype's finite minimum.

    Raises:
        TypeError: the ids are no array, or the dtype is no numpy float.
        ValueError: the ids are not 2D or negative, or the mask is too large.
    """
    if not isinstance(seq_pos_ids, np.ndarray):
        raise TypeError(f"seq_pos_ids must be a numpy array, got {type_name(seq_pos_ids)}")
    if seq_pos_ids.ndim != 2:
        raise ValueError(f"seq_pos_ids must be 2D (B, S), got shape {seq_pos_ids.shape}")
    if (seq_pos_ids < 0).any():
        raise ValueError("seq_pos_ids must be non-negative")
    batch, length = seq_pos_ids.shape
    _check_cells((batch, 1, length, length), maximum_cells)
    kind = _float_dtype(dtype)
    mask = np.full((batch, 1, length, length), np.finfo(kind).min, dtype=kind)
    for row, ids in zip(mask[:, 0], seq_pos_ids, strict=True):
        _allow_segments(row, ids)
    return mask


def build_cross_doc_mask(
    boundaries: Integers, seq_length: int, *, maximum_cells: int = MAXIMUM_CELLS
) -> npt.NDArray[np.uint8]:
    """Build the two-dimensional mask of packed documents, causal, without padding.

    Args:
        boundaries: documents + 1 integers, strictly increasing from 0 to ``seq_length``.
        seq_length: S, the tokens of the row.
        maximum_cells: refuse a mask of more cells.

    Returns:
        (S, S) uint8: 1 where a query (row) may attend to a key (column).

    Raises:
        TypeError: a boundary or the length is no integer.
        ValueError: boundaries are missing, do not rise, do not start at 0 or end at ``seq_length``.
    """
    length = integer("seq_length", seq_length, minimum=0)
    if boundaries is None or len(boundaries) == 0:
        raise ValueError("boundaries must be non-empty")
    edges = integers("boundaries", boundaries)
    if edges[0] != 0:
        raise ValueError(f"boundaries must start at 0, got boundaries[0]={edges[0]}")
    if edges[-1] != length:
        raise ValueError(f"boundaries must end at seq_length={length}, got boundaries[-1]={edges[-1]}")
    check_increasing(edges)
    _check_cells((length, length), maximum_cells)
    mask = np.zeros((length, length), dtype=np.uint8)
    for start, stop in pairwise(edges.tolist()):
        _fill_lower_triangle(mask[start:stop, start:stop], 1)
    return mask


def _check_cells(shape: tuple[int, ...], maximum: int) -> None:
    """Refuse a mask past the limit; an empty batch counts as one row, for its S is as suspect."""
    limit = integer("maximum_cells", maximum, minimum=1)
    cells = shape[-1] * shape[-2] * max(1, *shape[:1]) if len(shape) == 4 else shape[0] * shape[1]
    if cells > limit:
        raise ValueError(
            f"requested {len(shape)}D mask {shape} would allocate {cells} cells, exceeding cap {limit}. "
            "Use a FlashAttention varlen path or a shorter row."
        )


def _float_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"dtype must be a numpy float dtype, got {shown(dtype)}") from error
    if kind.kind != "f":
        raise TypeError(f"dtype must be a numpy float dtype, got {shown(dtype)}")
    return kind


def _allow_segments(mask: npt.NDArray[Any], ids: npt.NDArray[Any]) -> None:
    """Write 0 where a token may attend: (S, S) mask in place, from (S,) ids, run by run."""
    edges = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), ids.size]
    earlier: dict[Any, list[tuple[int, int]]] = {}
    for start, stop in pairwise(edges):
        if start == stop or not ids[start] > 0:
            continue
        runs = earlier.setdefault(ids[start].item(), [])
        for first, last in runs:
            mask[start:stop, first:last] = 0
        _fill_lower_triangle(mask[start:stop, start:stop], 0)
        runs.append((start, stop))


def _fill_lower_triangle(block: npt.NDArray[Any], value: int) -> None:
    """Write a value on and below the diagonal of an (n, n) view, a band of rows at a time."""
    for start in range(0, block.shape[0], _TILE):
        band = block[start : start + _TILE]
        band[:, :start] = value
        tile = band[:, start : start + _TILE]
        np.copyto(tile, value, where=_lower_triangle()[: tile.shape[0], : tile.shape[1]])


@cache
def _lower_triangle() -> npt.NDArray[np.bool_]:
    return np.tri(_TILE, dtype=np.bool_)
