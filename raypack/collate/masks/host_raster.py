"""Rasterizing a mask on the CPU from intervals, with nothing of the mask's size beside it.

The rows of a mask are windows into a template: the row that sees keys ``low`` to ``high`` of S is S cells
of "blocked, allowed, blocked", cut out where its edges fall right. `torch.index_select` copies such windows
with all of torch's threads, each cell once, in about the time of a fill.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from raypack.collate.masks.intervals import Intervals

Values: TypeAlias = tuple[float, float]
"""What stands where a query may attend, and where it may not."""
Places: TypeAlias = npt.NDArray[np.int64]

NARROW = 256
"""Keys that a narrow row sees at most: so few that its cells are written onto a row already blocked."""
BAND = 128
"""Rows written together where ids come again: few, for each of their cells is compared."""
KEPT = 2**25
"""Bytes of a block that glibc still keeps for the next one when it is freed, its pages with it."""
TORCH_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def unwritten(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate a mask; a large one on the CPU from numpy, which asks the kernel for huge pages.

    Most of the time of a large fresh mask is page faults, and huge pages have 512 times fewer.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size <= KEPT:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(size, dtype=np.uint8)).view(dtype).view(shape)


def rasterize_on_host(mask: torch.Tensor, intervals: Intervals, values: Values) -> None:
    """Write a (B, S, S) mask on the CPU from intervals within runs, whose ends never fall along a row."""
    allowed, blocked = value_bits(values, mask.dtype)
    cells = mask.view(TORCH_BITS[mask.dtype.itemsize])
    for square, low, high in zip(cells.unbind(), intervals.low, intervals.high, strict=True):
        _rasterize_square(square, low, high, allowed, blocked)


def rasterize_scattered_on_host(
    mask: torch.Tensor, ids: npt.NDArray[Any], intervals: Intervals, values: Values
) -> None:
    """Write a (B, S, S) mask on the CPU where an id comes again later in its row."""
    allowed, blocked = value_bits(values, mask.dtype)
    cells = mask.view(TORCH_BITS[mask.dtype.itemsize]).numpy()
    length = cells.shape[-1]
    keys = np.arange(length)
    for square, owners, low, high in zip(cells, ids, intervals.low, intervals.high, strict=True):
        for start in range(0, length, BAND):
            rows = slice(start, start + BAND)
            seen = (keys >= low[rows, None]) & (keys < high[rows, None])
            seen &= owners[rows, None] == owners
            square[rows] = blocked
            np.copyto(square[rows], allowed, where=seen)


def _rasterize_square(square: torch.Tensor, low: Places, high: Places, allowed: int, blocked: int) -> None:
    """Write an (S, S) square: groups of wide rows in one go, the others into rows that start blocked."""
    length = len(low)
    groups = list(_wide_groups(low, high))
    gaps = [(a, b) for (_, a, _), (b, _, _) in pairwise([(0, 0, 0), *groups, (length, 0, 0)]) if a < b]
    for start, stop in gaps:
        square[start:stop].fill_(blocked)
    if gaps:
        template = _narrow_template(NARROW, allowed, blocked, square.dtype)
        _rasterize_narrow(square, *_emptied(low, high, groups), template)
    for start, stop, key in groups:
        edges = _edges(length, allowed, blocked, square.dtype)
        if key:
            _copy_windows(edges, length - low[start:stop], square[start:stop, :key])
        _copy_windows(edges, 2 * length + key - high[start:stop], square[start:stop, key:])


def _wide_groups(low: Places, high: Places) -> Iterator[tuple[int, int, int]]:
    """Yield groups of consecutive rows that see a key in common, until no wide row is left.

    Up to that key a row has one edge at most, and from it on another one: each part is one window into a
    template with that edge. Because ends never fall, a search finds where a group starts and stops.

    Yields:
        The first row, the last (exclusive) and the key. Rising; other rows lie between them.
    """
    wide = high - low > NARROW
    stop = 0
    while stop < len(low):
        row = stop + int(wide[stop:].argmax())
        if not wide[row]:
            return
        done, stop = stop, int(low.searchsorted(high[row]))
        key = int(low[stop - 1])
        yield max(done, int(high.searchsorted(key, side="right"))), stop, key


def _emptied(low: Places, high: Places, groups: list[tuple[int, int, int]]) -> tuple[Places, Places]:
    """Return intervals that are empty, at the row's own place, in the rows of groups."""
    if groups:
        low, high = low.copy(), high.copy()
    for start, stop, _ in groups:
        low[start:stop] = high[start:stop] = np.arange(start, stop)
    return low, high


def _rasterize_narrow(square: torch.Tensor, low: Places, high: Places, template: torch.Tensor) -> None:
    """Write the rows of a blocked square, none of which sees more than `NARROW` keys around its own place.

    What they see lies in a strip along the diagonal. Seen as a tensor whose rows start one cell further
    right each, it is written at once; the rows where it would leave the square stay at the square's edge.
    """
    length = len(low)
    places = np.arange(length)
    before, after = int((places - low).max()), int((high - places).max())
    size = min(before + after, length)
    last = length - size
    turn = before + last + 1
    index = (high - low + 1) * (2 * NARROW) - low  # and the key that the strip's row starts at
    index[before:turn] += places[: last + 1]
    index[turn:] += last
    for start, stop, key, slope in ((0, before, 0, 0), (before, turn, 0, 1), (turn, length, last, 0)):
        if start < stop and size:
            first = square.storage_offset() + start * length + key
            rows = square.as_strided((stop - start, size), (length + slope, 1), first)
            _copy_windows(template, index[start:stop], rows)


def _copy_windows(template: torch.Tensor, starts: Places, out: torch.Tensor) -> None:
    """Write each row of ``out`` from the cells of a template that start at its place."""
    torch.index_select(template.unfold(0, out.shape[1], 1), 0, torch.from_numpy(starts), out=out)


@lru_cache(maxsize=16)
def _edges(length: int, allowed: int, blocked: int, dtype: torch.dtype) -> torch.Tensor:
    """Return S blocked, S allowed and S blocked cells."""
    return torch.from_numpy(np.repeat([blocked, allowed, blocked], length)).to(dtype)


@lru_cache(maxsize=16)
def _narrow_template(narrow: int, allowed: int, blocked: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows of ``2 * narrow`` cells, flat: two wholly blocked, then with 1, 2, … allowed in front."""
    stairs = torch.from_numpy(np.tri(narrow + 2, 2 * narrow, k=-2, dtype=np.bool_).ravel())
    return torch.full(stairs.shape, blocked, dtype=dtype, device="cpu").masked_fill_(stairs, allowed)


@cache
def value_bits(values: Values, dtype: torch.dtype) -> tuple[int, int]:
    """Return two values of a dtype as integers of its width."""
    allowed, blocked = (
        torch.tensor(values, dtype=dtype, device="cpu").view(TORCH_BITS[dtype.itemsize]).tolist()
    )
    return allowed, blocked
