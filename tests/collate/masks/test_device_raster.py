"""Masks on a device: each way of writing them gives the cells of the host; what is there decides."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raypack.collate import build_attention_mask
from raypack.collate.masks import device_raster
from raypack.collate.masks.device_raster import TILE, launch_grid, rasterize_by_expression, rasterizer_of
from raypack.collate.masks.intervals import key_intervals, prefix_stops, runs_of_offsets, runs_of_segments

DTYPES = [torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64]


def values_of(dtype):
    return (True, False) if dtype is torch.bool else (0.0, torch.finfo(dtype).min)


def case_of(lengths, padding, kind, window, by_offsets):
    """Return what the painter of a device is given, and the mask that the host makes of the same."""
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    total = int(offsets[-1]) + padding
    numbers = torch.arange(1, len(lengths) + 1).repeat_interleave(torch.tensor(lengths, dtype=torch.int64))
    ids = torch.nn.functional.pad(numbers, (0, padding))[None]
    runs = runs_of_offsets(offsets, total) if by_offsets else runs_of_segments(ids)
    options = {"kind": kind, "window": window, "pad_rows": "self"}
    prefix = None
    if kind == "prefix":
        options["prefix_lengths"] = [2] * len(lengths)
        prefix = prefix_stops(runs, torch.tensor([options["prefix_lengths"]]))
    intervals = key_intervals(runs, kind, window, "self", prefix, within_runs=by_offsets)

    def expected(dtype):
        return build_attention_mask(offsets, total, dtype, **options)[:, 0]

    return None if by_offsets else ids, intervals, expected


@pytest.mark.parametrize("kind", ["causal", "bidirectional", "prefix"])
@pytest.mark.parametrize("by_offsets", [True, False])
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    padding=st.integers(0, 4),
    window=st.none() | st.integers(1, 6),
    rows=st.integers(1, 20),
    dtype=st.sampled_from(DTYPES),
)
def test_the_plain_expression_gives_the_cells_of_the_host(
    kind, by_offsets, lengths, padding, window, rows, dtype
):
    ids, intervals, expected = case_of(lengths, padding, kind, window, by_offsets)
    mask = torch.empty(1, *2 * intervals.low.shape[-1:], dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_raster, "EAGER_ROWS", rows)
        rasterize_by_expression(mask, ids, intervals, values_of(dtype), compiled=False)
    assert torch.equal(mask, expected(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("by_offsets", [True, False])
def test_the_compiled_expression_gives_the_cells_of_the_host(by_offsets):
    for lengths in ([5, 1, 4], [40, 30]):
        ids, intervals, expected = case_of(lengths, 3, "causal", None, by_offsets)
        mask = torch.empty(1, *2 * intervals.low.shape[-1:])
        rasterize_by_expression(mask, ids, intervals, values_of(torch.float32), compiled=True)
        assert torch.equal(mask, expected(torch.float32))


@pytest.mark.parametrize(
    ("device", "has_triton", "way"),
    [
        ("cuda", True, "triton"),
        ("cuda", False, "eager"),
        ("mps", False, "compiled"),
        ("xpu", True, "compiled"),
    ],
)
def test_the_way_follows_the_device_and_what_is_installed(device, has_triton, way):
    assert rasterizer_of(device, has_triton) == way


@given(batch=st.integers(1, 3), length=st.integers(0, 2000))
def test_tiles_cover_each_cell_and_no_tile_is_empty(batch, length):
    keys, rows, squares = launch_grid(batch, length)
    assert squares == batch
    for tiles, size in ((rows, TILE[0]), (keys, TILE[1])):
        assert tiles * size >= length > (tiles - 1) * size or tiles == length == 0


def test_masks_are_made_where_triton_is_absent():
    code = "import sys; sys.modules['triton'] = None; import raypack.collate as c; c.build_attention_mask"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_the_triton_kernel_gives_the_cells_of_the_host_in_its_interpreter():
    code = "from tests.collate.masks.test_device_raster import interpret; interpret()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def interpret():
    """Run the kernel over kinds, dtypes and sizes that are no multiple of a tile."""
    from raypack.collate.masks.triton_raster import rasterize_with_triton

    for lengths, padding in (([5, 1, 4], 3), ([200, 90, 1], 12), ([1], 0)):
        for kind in ("causal", "bidirectional", "prefix"):
            for by_offsets in (True, False):
                for dtype in DTYPES:
                    ids, intervals, expected = case_of(lengths, padding, kind, 7, by_offsets)
                    mask = torch.empty(1, *2 * intervals.low.shape[-1:], dtype=dtype)
                    rasterize_with_triton(mask, ids, intervals, values_of(dtype))
                    assert torch.equal(mask, expected(dtype)), (lengths, kind, by_offsets, dtype)
    rows = torch.tensor([[1, 1, 2, 1, 0], [3, 3, 3, 1, 2]])
    intervals = key_intervals(runs_of_segments(rows), "causal", None, "blocked", None, within_runs=False)
    mask = torch.empty(2, 5, 5, dtype=torch.bool)
    rasterize_with_triton(mask, rows, intervals, (True, False))
    assert torch.equal(mask, build_attention_mask(segment_ids=rows, dtype=torch.bool)[:, 0])
