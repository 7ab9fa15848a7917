"""Writing a mask on the CPU from intervals, with nothing of the mask's size beside it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from raypack.collate.intervals import Intervals, Runs

Values: TypeAlias = tuple[float, float]
"""What stands where a query may attend, and where it may not."""
Bits: TypeAlias = npt.NDArray[Any]
"""A mask's memory as integers of its width."""

BAND = 128
"""Rows written together: few enough that the ragged edge of a band is a small part of it."""
THREADED = 2**26
"""Bytes of a mask above which threads are worth starting: most of such a mask's time is page faults."""
_BITS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
TORCH_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def unwritten(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate a mask; on the CPU from numpy, which asks the kernel for huge pages.

    Most of the time of a large fresh mask is page faults, and huge pages have 512 times fewer.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, dtype=_BITS[dtype.itemsize])).view(dtype)


def paint_on_host(mask: torch.Tensor, runs: Runs, intervals: Intervals, values: Values) -> None:
    """Write a (B, S, S) mask on the CPU, a band of rows at a time, from intervals within runs."""
    cells, (allowed, blocked) = _bits(mask, values)
    lows, highs, starts = intervals.low.numpy(), intervals.high.numpy(), runs.starts.numpy()
    every = [
        (cells[row], band)
        for row in range(len(cells))
        for band in _bands_of(starts[row], lows[row], highs[row])
    ]

    def paint(place: tuple[Bits, _Band]) -> None:
        _paint_band(*place, allowed, blocked)

    workers = torch.get_num_threads() if mask.nbytes > THREADED else 1
    if workers == 1:
        for place in every:
            paint(place)
        return
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(paint, every):  # asked for, so that an error is raised here
            pass


def paint_scattered_on_host(
    mask: torch.Tensor, ids: torch.Tensor, intervals: Intervals, values: Values
) -> None:
    """Write a (B, S, S) mask on the CPU where an id comes again later in its row."""
    cells, (allowed, blocked) = _bits(mask, values)
    lows, highs, owners = intervals.low.numpy(), intervals.high.numpy(), ids.numpy()
    length = cells.shape[-1]
    for row in range(len(cells)):
        for start in range(0, length, BAND):
            rows = slice(start, start + BAND)
            seen = _between(0, length, lows[row, rows], highs[row, rows])
            seen &= owners[row, rows, None] == owners[row]
            cells[row, rows] = blocked
            np.copyto(cells[row, rows], allowed, where=seen)


def bands(edges: list[int]) -> Iterator[tuple[int, int]]:
    """Cut rows into bands: long runs into bands of their own, short ones gathered.

    Args:
        edges: where runs start, rising, and the number of rows.

    Yields:
        Starts and stops of bands, rising, without gaps.
    """
    gathered = 0
    for start, stop in pairwise(edges):
        if stop - start < BAND // 2 and stop - gathered <= BAND:
            continue
        if gathered < start:
            yield gathered, start
        gathered = start
        if stop - start >= BAND // 2:
            for first in range(start, stop, BAND):
                yield first, min(first + BAND, stop)
            gathered = stop
    if edges and gathered < edges[-1]:
        yield gathered, edges[-1]


class _Band(NamedTuple):
    """Consecutive rows that are written together, and what their intervals have in common."""

    start: int
    stop: int
    low: npt.NDArray[np.int64]
    """(rows,) first keys."""
    high: npt.NDArray[np.int64]
    """(rows,) last keys, exclusive."""
    any_low: int
    """The least of `low`; `all_low` is the greatest, and so for `high`."""
    all_low: int
    all_high: int
    any_high: int
    low_rises: bool
    """Whether `low` rises by one from row to row."""
    high_rises: bool


def _bands_of(
    starts: npt.NDArray[np.int64], low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]
) -> Iterator[_Band]:
    """Cut the rows of one square into bands; all their numbers are found in a few passes.

    Args:
        starts: (S,) where each row's run starts.
        low: (S,) first keys.
        high: (S,) last keys, exclusive.
    """
    if not len(starts):
        return
    changes = np.flatnonzero(starts[1:] != starts[:-1]) + 1
    cuts = list(bands([0, *changes.tolist(), len(starts)]))
    firsts = np.array([start for start, _ in cuts])
    least, most = ([each.reduceat(v, firsts) for v in (low, high)] for each in (np.minimum, np.maximum))
    rises = [
        _rises(values, cuts) if (a != b).any() else [False] * len(cuts)
        for values, a, b in zip((low, high), least, most, strict=True)
    ]
    numbers = zip(*(each.tolist() for each in (least[0], most[0], least[1], most[1])), *rises, strict=True)
    for (start, stop), facts in zip(cuts, numbers, strict=True):
        yield _Band(start, stop, low[start:stop], high[start:stop], *facts)


def _rises(values: npt.NDArray[np.int64], cuts: list[tuple[int, int]]) -> list[bool]:
    """Tell of each band whether its values rise by one from row to row."""
    breaks = np.zeros(len(values), dtype=np.int64)
    np.cumsum(values[1:] - values[:-1] != 1, out=breaks[1:])
    ends = np.array(cuts)
    same: list[bool] = (breaks[ends[:, 0]] == breaks[ends[:, 1] - 1]).tolist()
    return same


def _paint_band(cells: Bits, band: _Band, allowed: int, blocked: int) -> None:
    """Write a band's rows: what they have in common as copies of one row, then the ragged edges over it.

    Copying a row again and again is memcpy; filling rectangles is three times slower.
    """
    all_low, all_high, any_high = band.all_low, band.all_high, band.any_high
    apart = all_low <= all_high
    if not apart:
        all_low = all_high = any_high
    rows = cells[band.start : band.stop]
    common = np.full(cells.shape[1], blocked, dtype=cells.dtype)
    common[all_low:all_high] = allowed
    rows[...] = common
    if band.any_low < all_low:
        stairs = (blocked, allowed) if apart and band.low_rises else None
        _paint_edge(rows, band, band.any_low, all_low, (allowed, blocked), stairs)
    if all_high < any_high:
        stairs = (allowed, blocked) if apart and band.high_rises else None
        _paint_edge(rows, band, all_high, any_high, (allowed, blocked), stairs)


def _paint_edge(
    rows: Bits, band: _Band, first: int, last: int, values: tuple[int, int], stairs: tuple[int, int] | None
) -> None:
    """Write keys ``first`` to ``last`` of a band: from a tile of stairs, or each cell by comparison."""
    edge = rows[:, first:last]
    if stairs is not None:
        edge[...] = _stairs(rows.dtype, *stairs)[: edge.shape[0], : edge.shape[1]]
        return
    allowed, blocked = values
    edge[...] = blocked
    np.copyto(edge, allowed, where=_between(first, last, band.low, band.high))


def _between(
    first: int, last: int, low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return (rows, last - first): whether the key lies in the row's interval."""
    keys = np.arange(first, last)
    seen: npt.NDArray[np.bool_] = (keys >= low[:, None]) & (keys < high[:, None])
    return seen


@cache
def _stairs(dtype: np.dtype[Any], below: int, above: int) -> Bits:
    """Return a (band, band) tile: row r has ``below`` in its first r columns, then ``above``."""
    return np.where(np.tri(BAND, k=-1, dtype=np.bool_), below, above).astype(dtype)


def _bits(mask: torch.Tensor, values: Values) -> tuple[Bits, tuple[int, int]]:
    """Return a mask's memory and its two values as integers, for numpy knows no bfloat16."""
    return mask.view(TORCH_BITS[mask.dtype.itemsize]).numpy(), value_bits(values, mask.dtype)


@cache
def value_bits(values: Values, dtype: torch.dtype) -> tuple[int, int]:
    """Return two values of a dtype as integers of its width."""
    allowed, blocked = torch.tensor(values, dtype=dtype).view(TORCH_BITS[dtype.itemsize]).tolist()
    return allowed, blocked
