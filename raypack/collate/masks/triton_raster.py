"""The mask as one Triton kernel: every cell is computed and stored once. Imported where Triton is.

The kernel has run in Triton's interpreter, and been compiled for compute capability 9.0 (where S is a
multiple of 16 its stores are 128 bits wide). It has never run on a GPU.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton reads a kernel's annotations as code.)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from raypack.collate.masks.device_raster import TILE, launch_grid
from raypack.collate.masks.host_raster import TORCH_BITS, value_bits
from raypack.collate.masks.intervals import Intervals


def rasterize_with_triton(
    mask: torch.Tensor, ids: torch.Tensor | None, intervals: Intervals, values: tuple[float, float]
) -> None:
    """Write a (B, S, S) mask in one kernel; ids are compared where they are given.

    Args:
        mask: contiguous, of a float dtype or bool.
        ids: (B, S) integers, or None where intervals end at the runs' edges already.
        intervals: (B, S) keys that each query may see.
        values: what stands where a query may attend, and where it may not.
    """
    # As integers: a scalar argument of a kernel is 32 bits wide, too few for float64's minimum.
    cells, (allowed, blocked) = mask.view(TORCH_BITS[mask.dtype.itemsize]), value_bits(values, mask.dtype)
    batch, length = intervals.low.shape
    low, high = intervals.low.contiguous(), intervals.high.contiguous()
    owners = low if ids is None else ids.contiguous()
    _rasterize_tile[launch_grid(batch, length)](
        cells, low, high, owners, length, allowed, blocked, ids is not None, *TILE
    )


@triton.jit
def _rasterize_tile(
    cells,
    low,
    high,
    owners,
    length,
    allowed: tl.constexpr,
    blocked: tl.constexpr,
    compare: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_keys: tl.constexpr,
):
    """Write one tile of one square: programs are (tile of keys, tile of rows, square)."""
    keys = tl.program_id(0) * tile_keys + tl.arange(0, tile_keys)
    rows = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)
    first = tl.program_id(2).to(tl.int64) * length
    known_rows, known_keys = rows < length, keys < length
    lows = tl.load(low + first + rows, mask=known_rows, other=0)
    highs = tl.load(high + first + rows, mask=known_rows, other=0)
    seen = (keys[None, :] >= lows[:, None]) & (keys[None, :] < highs[:, None])
    if compare:
        of_rows = tl.load(owners + first + rows, mask=known_rows, other=0)
        of_keys = tl.load(owners + first + keys, mask=known_keys, other=0)
        seen = seen & (of_rows[:, None] == of_keys[None, :])
    places = (first + rows.to(tl.int64))[:, None] * length + keys[None, :]
    written = tl.where(seen, allowed, blocked).to(cells.dtype.element_ty)
    tl.store(cells + places, written, mask=known_rows[:, None] & known_keys[None, :])
