"""How masks are written: where runs lie, which rows go together, and what memory it takes."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from raypack.collate import build_attention_mask
from raypack.collate.masks import host_raster
from raypack.collate.masks.intervals import (
    host_runs_of_offsets,
    host_runs_of_segments,
    key_intervals,
    prefix_stops,
    runs_of_offsets,
    runs_of_segments,
)
from tests.support.mask_cases import FLOATS, ids_of, masks


@given(masks)
def test_groups_of_rows_see_their_key_and_leave_no_wide_row(case):
    offsets = np.cumsum([0, *case["lengths"]])
    runs = host_runs_of_offsets(offsets, int(offsets[-1]) + case["padding"])
    prefix = None
    if case["kind"] == "prefix":
        prefix = prefix_stops(runs, torch.full((1, len(case["lengths"])), case["seed"]))
    intervals = key_intervals(runs, case["kind"], case["window"], case["pad_rows"], prefix, within_runs=True)
    low, high = intervals.low[0], intervals.high[0]
    assert (np.diff(low) >= 0).all()
    assert (np.diff(high) >= 0).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_raster, "NARROW", case["narrow"])
        groups = list(host_raster._wide_groups(low, high))
    for start, stop, key in groups:
        assert (low[start:stop] <= key).all()
        assert (key < high[start:stop]).all()
    assert all(stop <= start for (_, stop, _), (start, _, _) in pairwise(groups))
    others = np.ones(len(low), dtype=bool)
    for start, stop, _ in groups:
        assert (high - low)[start:stop].max() > case["narrow"]
        others[start:stop] = False
    assert not (others & (high - low > case["narrow"])).any()


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(0, 3), st.integers(0, 4))
def test_documents_are_looked_up_on_a_device_as_they_are_repeated_on_the_host(lengths, spare, padding):
    offsets = torch.tensor([*np.cumsum([0, *lengths]), *[sum(lengths)] * spare], dtype=torch.int32)
    total = sum(lengths) + padding
    host, device = host_runs_of_offsets(offsets.numpy(), total), runs_of_offsets(offsets, total)
    real = host.ids != 0  # of padding no start is ever read
    for name in ("ids", "starts", "stops"):
        ours, theirs = getattr(host, name), getattr(device, name).numpy()
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours[real], theirs[real])
    assert np.array_equal(host.ids, device.ids.numpy())


@given(st.integers(0, 3), st.integers(0, 9), st.data())
def test_runs_of_segments_are_the_same_on_the_host_and_on_a_device(rows, length, data):
    flat = data.draw(st.lists(st.integers(0, 2), min_size=rows * length, max_size=rows * length))
    ids = np.array(flat, dtype=np.int32).reshape(rows, length)
    host, device = host_runs_of_segments(ids), runs_of_segments(torch.from_numpy(ids))
    for name in ("ids", "starts", "stops"):
        ours, theirs = getattr(host, name), getattr(device, name).numpy()
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("kept", [0, host_raster.KEPT])
@pytest.mark.parametrize("shape", [(1, 40), (3, 40), (2, 0), (0, 3)])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.bool])
def test_masks_are_tensors_of_their_own_wherever_their_memory_comes_from(kept, shape, dtype, monkeypatch):
    monkeypatch.setattr(host_raster, "KEPT", kept)
    ids = np.ones(shape, dtype=np.int64)
    mask = build_attention_mask(segment_ids=ids, dtype=dtype)
    assert mask.is_contiguous()
    assert mask.storage_offset() == 0
    assert mask.untyped_storage().nbytes() == mask.nbytes
    allowed = torch.ones(shape[1], shape[1], dtype=torch.bool).tril()
    assert torch.equal(mask if dtype is torch.bool else mask == 0, allowed.expand_as(mask))


class Storages(TorchDispatchMode):
    """Record the storage of every tensor that an operation gives."""

    def __init__(self):
        super().__init__()
        self.sizes = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for each in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                self.sizes[storage.data_ptr()] = storage.nbytes()
        return made


@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
@pytest.mark.parametrize("scattered", [False, True])
def test_one_allocation_of_the_mask_and_nothing_like_it(kind, scattered, monkeypatch):
    monkeypatch.setattr(host_raster, "KEPT", 0)  # so that numpy allocates the mask, where it is counted
    ids = ids_of([700, 1, 1299], 48)
    if scattered:
        ids[0, 900:910] = 1
    build_attention_mask([0, 1], dtype=torch.float16)  # templates are kept from one mask to the next
    tracemalloc.start()
    mask = build_attention_mask(segment_ids=ids, dtype=torch.float16, kind=kind)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mask.nbytes < peak < (1.25 if scattered else 1.05) * mask.nbytes
    with Storages() as storages:
        mask = build_attention_mask(segment_ids=ids, dtype=torch.float16, kind=kind)
    del storages.sizes[mask.data_ptr()]
    assert sum(storages.sizes.values()) < 0.05 * mask.nbytes
