"""Rasterizing a mask on a device from intervals: in one kernel where something there makes one."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch

from raypack.collate.masks.host_raster import Values
from raypack.collate.masks.intervals import Intervals

TILE = (32, 256)
"""Rows and keys that one program of the Triton kernel writes."""
EAGER_ROWS = 1024
"""Rows written at once where nothing fuses the expression, so that its parts stay small."""


def rasterize_on_device(
    mask: torch.Tensor, ids: torch.Tensor | None, intervals: Intervals, values: Values
) -> None:
    """Write a contiguous (B, S, S) mask; ids are compared where they are given.

    Nothing is read back. With Triton in its own kernel, elsewhere by the compiled expression, and on
    CUDA without Triton (which `torch.compile` needs there) a band of rows at a time.
    """
    kind = rasterizer_of(mask.device.type, importlib.util.find_spec("triton") is not None)
    if kind == "triton":
        from raypack.collate.masks.triton_raster import rasterize_with_triton

        rasterize_with_triton(mask, ids, intervals, values)
    else:
        rasterize_by_expression(mask, ids, intervals, values, compiled=kind == "compiled")


def rasterizer_of(device_type: str, has_triton: bool) -> str:
    """Return ``"triton"``, ``"compiled"`` or ``"eager"``."""
    if device_type == "cuda":
        return "triton" if has_triton else "eager"
    return "compiled"


def launch_grid(batch: int, length: int) -> tuple[int, int, int]:
    """Return the programs of the Triton kernel: tiles of keys, tiles of rows, squares."""
    rows, keys = TILE
    return -(-length // keys), -(-length // rows), batch


def rasterize_by_expression(
    mask: torch.Tensor, ids: torch.Tensor | None, intervals: Intervals, values: Values, *, compiled: bool
) -> None:
    """Write a mask by the plain expression, fused or a band of rows at a time."""
    keys = torch.arange(mask.shape[-1], device=mask.device)
    allowed, blocked = (torch.full((), value, dtype=mask.dtype, device=mask.device) for value in values)
    if compiled:
        _fused()(mask, keys, intervals.low, intervals.high, ids, ids, allowed, blocked)
        return
    for start in range(0, mask.shape[1], EAGER_ROWS):
        rows = slice(start, start + EAGER_ROWS)
        own = None if ids is None else ids[:, rows]
        write_cells(
            mask[:, rows], keys, intervals.low[:, rows], intervals.high[:, rows], own, ids, allowed, blocked
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
    row_ids: torch.Tensor | None,
    key_ids: torch.Tensor | None,
    allowed: torch.Tensor,
    blocked: torch.Tensor,
) -> None:
    """Say of every cell whether its key lies in its query's interval (and has its id)."""
    seen = (keys >= low[:, :, None]) & (keys < high[:, :, None])
    if row_ids is not None and key_ids is not None:
        seen = seen & (row_ids[:, :, None] == key_ids[:, None, :])
    mask.copy_(torch.where(seen, allowed, blocked))
