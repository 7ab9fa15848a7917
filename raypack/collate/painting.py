"""Writing a mask from intervals: each cell once, with nothing of the mask's size beside it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from raypack.collate.intervals import Intervals, Runs

BAND = 128
"""Rows written together: few enough that the ragged edge of a band is a small part of it."""


def paint_on_host(
    mask: torch.Tensor, runs: Runs, intervals: Intervals, allowed: float, blocked: float
) -> None:
    """Write a (B, S, S) mask on the CPU, a band of rows at a time, from intervals within runs."""
    for row in range(mask.shape[0]):
        low, high = intervals.low[row], intervals.high[row]
        lows, highs = low.numpy(), high.numpy()
        edges = np.flatnonzero(np.diff(runs.starts[row].numpy(), prepend=-1, append=-1)).tolist()
        for start, stop in bands(edges):
            reach = _Reach(lows[start:stop], highs[start:stop])
            _paint_band(mask[row, start:stop], low[start:stop], high[start:stop], reach, allowed, blocked)


def paint_scattered_on_host(
    mask: torch.Tensor, ids: torch.Tensor, intervals: Intervals, allowed: float, blocked: float
) -> None:
    """Write a (B, S, S) mask on the CPU where an id comes again later in its row."""
    length = mask.shape[-1]
    keys = torch.arange(length)
    for row in range(mask.shape[0]):
        for start in range(0, length, BAND):
            rows = slice(start, min(start + BAND, length))
            seen = ids[row, rows, None] == ids[row]
            seen &= keys >= intervals.low[row, rows, None]
            seen &= keys < intervals.high[row, rows, None]
            mask[row, rows].fill_(blocked).masked_fill_(seen, allowed)


def paint_on_device(
    mask: torch.Tensor, ids: torch.Tensor | None, intervals: Intervals, allowed: float, blocked: float
) -> None:
    """Write a (B, S, S) mask in one fused kernel; ids are compared where they are given."""
    keys = torch.arange(mask.shape[-1], device=mask.device)
    values = (torch.tensor(v, dtype=mask.dtype, device="cpu") for v in (allowed, blocked))
    _fused()(
        mask,
        keys,
        intervals.low,
        intervals.high,
        ids,
        *(v.to(mask.device, non_blocking=True) for v in values),
    )


@cache
def _fused() -> Any:
    """Compile the expression when the first mask is asked for on a device."""
    return torch.compile(write_cells, dynamic=True)


def write_cells(
    mask: torch.Tensor,
    keys: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    ids: torch.Tensor | None,
    allowed: torch.Tensor,
    blocked: torch.Tensor,
) -> None:
    """Say of every cell whether its key lies in its query's interval (and has its id)."""
    seen = (keys >= low[:, :, None]) & (keys < high[:, :, None])
    if ids is not None:
        seen = seen & (ids[:, :, None] == ids[:, None, :])
    mask.copy_(torch.where(seen, allowed, blocked))


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


class _Reach:
    """How far the rows of a band reach, all together and each."""

    __slots__ = ("all_high", "all_low", "any_high", "any_low", "stairs_high", "stairs_low")

    def __init__(self, low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]) -> None:
        self.any_low, self.any_high = int(low.min()), int(high.max())
        self.all_low, self.all_high = int(low.max()), int(high.min())
        apart = self.all_low <= self.all_high
        if not apart:
            self.all_low = self.all_high = self.any_high
        self.stairs_low = apart and _rises_by_one(low)
        self.stairs_high = apart and _rises_by_one(high)


def _rises_by_one(values: npt.NDArray[np.int64]) -> bool:
    return bool(values[-1] - values[0] == len(values) - 1 and (np.diff(values) == 1).all())


def _paint_band(
    band: torch.Tensor, low: torch.Tensor, high: torch.Tensor, reach: _Reach, allowed: float, blocked: float
) -> None:
    """Write (rows, S): outside every row's reach, inside all of them, and the ragged edges between.

    An edge that is a flight of stairs, as the causal diagonal is, is copied from a tile made once.
    """
    _fill(band[:, : reach.any_low], blocked)
    _fill(band[:, reach.any_high :], blocked)
    _fill(band[:, reach.all_low : reach.all_high], allowed)
    if reach.any_low < reach.all_low:
        edge = band[:, reach.any_low : reach.all_low]
        tile = _stairs(band.dtype, blocked, allowed) if reach.stairs_low else None
        _paint_edge(edge, reach.any_low, low, high, tile, allowed, blocked)
    if reach.all_high < reach.any_high:
        edge = band[:, reach.all_high : reach.any_high]
        tile = _stairs(band.dtype, allowed, blocked) if reach.stairs_high else None
        _paint_edge(edge, reach.all_high, low, high, tile, allowed, blocked)


def _paint_edge(
    edge: torch.Tensor,
    first: int,
    low: torch.Tensor,
    high: torch.Tensor,
    tile: torch.Tensor | None,
    allowed: float,
    blocked: float,
) -> None:
    """Write (rows, columns) from key ``first`` on: a copy of the tile, or each cell by comparison."""
    if tile is not None:
        edge.copy_(tile[: edge.shape[0], : edge.shape[1]])
        return
    keys = torch.arange(first, first + edge.shape[1])
    seen = (keys >= low[:, None]) & (keys < high[:, None])
    edge.fill_(blocked).masked_fill_(seen, allowed)


@cache
def _stairs(dtype: torch.dtype, below: float, above: float) -> torch.Tensor:
    """Return a (band, band) tile: row r has ``below`` in its first r columns, then ``above``."""
    tile = torch.full((BAND, BAND), above, dtype=dtype)
    return tile.masked_fill_(torch.ones(BAND, BAND, dtype=torch.bool).tril(-1), below)


def _fill(cells: torch.Tensor, value: float) -> None:
    if cells.numel():
        cells.fill_(value)
