"""What is placed on the host and on a device is the same, whatever the shape."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raypack.collate.layout import device_placing, host_placing
from raypack.collate.layout.batch_shape import BatchShape
from raypack.collate.layout.flat import parse_flat

CPU = torch.device("cpu")

shapes = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(1, 9), max_size=8),
        "padding": st.integers(0, 4),
        "spare": st.none() | st.integers(0, 3),
        "labelled": st.booleans(),
    }
)


def flat_of(case):
    rng = np.random.default_rng(len(case["lengths"]))
    ids = rng.integers(0, 50, sum(case["lengths"]), dtype=np.int32)
    labels = np.where(rng.random(len(ids)) < 0.4, -100, ids + 1).astype(np.int32)
    flat = parse_flat(ids, np.array(case["lengths"], np.int32), labels if case["labelled"] else None)
    slots = None if case["spare"] is None else max(len(case["lengths"]) + case["spare"], 1)
    return flat, BatchShape.parse(pad_documents_to=slots).offsets(flat)


def assert_same(ours, theirs):
    for name, mine, other in zip(ours._fields, ours, theirs, strict=True):
        assert mine.dtype == other.dtype, name
        assert torch.equal(mine, other), name


@given(shapes)
@settings(max_examples=80)
def test_packed_rows_are_the_same_on_the_host_and_on_a_device(case):
    flat, offsets = flat_of(case)
    size = flat.total + case["padding"]
    host = host_placing.place_packed(flat, offsets.copy(), size, 7)
    assert_same(host, device_placing.place_packed(flat, offsets, size, 7, CPU))


@given(shapes, st.booleans())
@settings(max_examples=80)
def test_padded_rows_are_the_same_on_the_host_and_on_a_device(case, left):
    flat, offsets = flat_of(case)
    size = max(flat.max_seqlen + case["padding"], 1)
    host = host_placing.place_padded(flat, offsets.copy(), size, 7, left=left)
    assert_same(host, device_placing.place_padded(flat, offsets, size, 7, CPU, left=left))
    assert host.input_ids.shape == (max(len(offsets) - 1, 1), size)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
@pytest.mark.parametrize("padded", [False, True])
def test_tensors_of_any_width_that_lie_on_the_device_are_placed_there(dtype, padded):
    ids = torch.tensor([1, 2, 3, 4, 5], dtype=dtype)
    flat = parse_flat(ids.numpy(), np.array([2, 3]), None)
    object.__setattr__(flat, "input_ids", ids)
    if padded:
        placed = device_placing.place_padded(flat, flat.offsets, 3, 9, CPU, left=False)
        assert placed.input_ids.tolist() == [[1, 2, 9], [3, 4, 5]]
        assert placed.labels.tolist() == [[-100, 2, -100], [-100, 4, 5]]
    else:
        placed = device_placing.place_packed(flat, flat.offsets, 6, 9, CPU)
        assert placed.input_ids.tolist() == [[1, 2, 3, 4, 5, 9]]
        assert placed.labels.tolist() == [[-100, 2, -100, 4, 5, -100]]


def test_one_copy_carries_all_and_never_shares_the_callers_memory():
    arrays = [np.arange(3), np.array([7], np.int32), np.empty(0, np.uint8)]
    landed = device_placing.carry(arrays, CPU)
    assert [part.tolist() for part in landed] == [[0, 1, 2], [7], []]
    assert len({part.untyped_storage().data_ptr() for part in landed}) == 1
    assert all(part.dtype == torch.int32 for part in landed)
    landed[0].zero_()
    assert arrays[0].tolist() == [0, 1, 2]


def test_more_tokens_than_are_kept_to_count_with_are_counted_too(monkeypatch):
    monkeypatch.setattr(host_placing, "CACHED_BITS", 2)
    flat = parse_flat(np.arange(9, dtype=np.int32), np.array([4, 5]), None)
    placed = host_placing.place_packed(flat, flat.offsets, 10, 0)
    assert placed.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]]


def test_what_is_kept_to_count_with_cannot_be_written():
    flat = parse_flat(np.arange(3, dtype=np.int32), np.array([3]), None)
    host_placing.place_packed(flat, flat.offsets, 3, 0).position_ids.fill_(9)
    again = host_placing.place_packed(flat, flat.offsets, 3, 0)
    assert again.position_ids.tolist() == [[0, 1, 2]]
