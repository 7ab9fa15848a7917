"""Device masks against the definition cell by cell, and against the numpy reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raypack.collate import BatchError, build_attention_mask
from raypack.collate.masks import host_raster
from raypack.packing import build_4d_attention_mask
from tests.support.mask_cases import FLOATS, KINDS, built, ids_of, masks


def by_definition(ids, kind, window, prefix, pad_rows):
    """Rows of ids (B, S) → (B, S, S) bool, one cell at a time."""
    batch, length = ids.shape
    seen = np.zeros((batch, length, length), dtype=bool)
    for b in range(batch):
        for q in range(length):
            if ids[b, q] == 0:
                seen[b, q, q] = pad_rows == "self"
                continue
            start = q
            while start > 0 and ids[b, start - 1] == ids[b, q]:
                start -= 1
            stop = q + 1
            while stop < length and ids[b, stop] == ids[b, q]:
                stop += 1
            for k in range(length):
                near = window is None or abs(q - k) < window
                in_prefix = kind == "prefix" and k < min(start + prefix[b][ids[b, q] - 1], stop)
                order = kind == "bidirectional" or k <= q or in_prefix
                seen[b, q, k] = ids[b, q] == ids[b, k] and order and near
    return seen


@pytest.fixture(params=[256, 40, 1])
def narrow(request, monkeypatch):
    """Rows as painted by default, some of them wide, and all that see two keys wide."""
    monkeypatch.setattr(host_raster, "NARROW", request.param)


@given(masks)
@settings(max_examples=150, deadline=None)
def test_every_kind_follows_the_definition(case):
    lengths, padding = case["lengths"], case["padding"]
    options = {name: case[name] for name in ("kind", "window", "pad_rows")}
    prefix = np.random.default_rng(case["seed"]).integers(0, 6, len(lengths))
    if case["kind"] == "prefix":
        options["prefix_lengths"] = prefix
    ids = ids_of(lengths, padding)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    expected = by_definition(ids, prefix=[prefix], **{k: case[k] for k in ("kind", "window", "pad_rows")})
    from_offsets = built(case, offsets, ids.shape[1], torch.bool, **options)
    assert from_offsets.shape == (1, 1, ids.shape[1], ids.shape[1])
    assert (from_offsets[:, 0].numpy() == expected).all()
    assert torch.equal(from_offsets, built(case, segment_ids=ids, dtype=torch.bool, **options))


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=3), masks)
@settings(max_examples=80, deadline=None)
def test_any_segment_ids_follow_the_definition_also_where_an_id_comes_again(rows, case):
    ids = np.array(rows)
    options = {name: case[name] for name in ("kind", "window", "pad_rows")}
    prefix = np.random.default_rng(case["seed"]).integers(0, 5, (len(rows), 3))
    expected = by_definition(ids, prefix=prefix, **options)
    if case["kind"] == "prefix":
        options["prefix_lengths"] = prefix
    mask = built(case, segment_ids=ids, dtype=torch.bool, **options)
    assert (mask[:, 0].numpy() == expected).all()


@given(st.lists(masks, min_size=1, max_size=3), st.sampled_from(FLOATS), st.integers(0, 3), st.data())
@settings(max_examples=150, deadline=None)
def test_rows_of_a_batch_equal_the_reference_cut_to_what_each_may_see(cases, dtype, spare, data):
    """The numpy reference is causal; of the other kinds it is asked twice, of rows and of keys."""
    case = cases[0]
    kind, window, pad_rows = case["kind"], case["window"], case["pad_rows"]
    lengths = [each["lengths"] for each in cases]
    total = max(map(sum, lengths)) + case["padding"]
    ids = np.concatenate([ids_of(each, total - sum(each)) for each in lengths])
    prefix = np.array(data.draw(st.lists(st.integers(0, 12), min_size=5 * len(ids), max_size=5 * len(ids))))
    prefix = prefix.reshape(len(ids), 5)
    causal = build_4d_attention_mask(ids, np.float64) == 0
    places = np.arange(total)
    starts = np.where(ids[:, None, :] == ids[:, :, None], places, total).min(axis=2, initial=total)
    ends = starts + np.pad(prefix, [(0, 0), (1, 0)])[np.arange(len(ids))[:, None], ids]
    later = causal.swapaxes(2, 3)
    if kind == "prefix":
        later = later & (places < ends[:, :, None])[:, None]
    seen = causal | later if kind != "causal" else causal
    if window is not None:
        seen = seen & (abs(places[:, None] - places) < window)
    if pad_rows == "self":
        seen = seen | (np.eye(total, dtype=bool) & (ids == 0)[:, None, :, None])
    options = {"kind": kind, "window": window, "pad_rows": pad_rows}
    if kind == "prefix":
        options["prefix_lengths"] = prefix
    expected = torch.from_numpy(np.where(seen, 0.0, float(torch.finfo(dtype).min))).to(dtype)
    ours = built(case, segment_ids=ids, dtype=dtype, **options)
    assert ours.dtype == dtype
    assert torch.equal(ours, expected)
    assert torch.equal(built(case, segment_ids=ids, dtype=torch.bool, **options), torch.from_numpy(seen))
    offsets = np.cumsum([0, *lengths[0], *[0] * spare])
    if kind == "prefix":
        options["prefix_lengths"] = prefix[0]
    assert torch.equal(built(case, offsets, total, dtype, **options), expected[:1])


@pytest.mark.parametrize("lengths", [[700], [300, 1, 63, 64, 65, 129], [3] * 150, [1, 200, 2, 2, 128, 30]])
@pytest.mark.parametrize("window", [None, 1, 50, 200])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("narrow")
def test_long_rows_equal_the_plain_expression(lengths, window, kind):
    ids = torch.from_numpy(ids_of(lengths, 37))[0]
    place = torch.arange(len(ids))
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    starts = offsets[ids - 1]
    order = place[None] <= place[:, None]
    options = {}
    if kind == "bidirectional":
        order = torch.ones_like(order)
    if kind == "prefix":
        order |= place[None] < (starts + 40)[:, None]
        options["prefix_lengths"] = [40] * len(lengths)
    seen = (ids[:, None] == ids[None]) & (ids != 0)[:, None] & order
    if window is not None:
        seen &= (place[:, None] - place[None]).abs() < window
    mask = build_attention_mask(offsets, len(ids), torch.bool, kind=kind, window=window, **options)
    assert torch.equal(mask[0, 0], seen)


@pytest.mark.parametrize("dtype", FLOATS)
def test_additive_masks_hold_zero_and_the_finite_minimum_of_their_own_dtype(dtype):
    seen = build_attention_mask([0, 130, 133], 140, torch.bool)
    mask = build_attention_mask([0, 130, 133], 140, dtype)
    assert mask.dtype == dtype
    assert torch.equal(mask == 0, seen)
    assert (mask[~seen] == torch.finfo(dtype).min).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_masks_equal_the_numpy_reference(dtype):
    ids = np.concatenate([ids_of([200, 3, 90], 20), ids_of([1, 312], 0)])
    ours = build_attention_mask(segment_ids=ids, dtype=getattr(torch, dtype.__name__))
    assert np.array_equal(ours.numpy(), build_4d_attention_mask(ids, dtype))


def test_an_id_that_comes_again_sees_its_earlier_tokens_as_in_the_reference():
    ids = np.array([[1, 2, 1]])
    ours = build_attention_mask(segment_ids=ids, dtype=torch.float32)
    assert np.array_equal(ours.numpy(), build_4d_attention_mask(ids, np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_at_all_gives_an_empty_or_a_blocked_mask(kind):
    options = {"prefix_lengths": []} if kind == "prefix" else {}
    assert build_attention_mask([0], dtype=torch.bool, kind=kind, **options).shape == (1, 1, 0, 0)
    assert not build_attention_mask([0], 3, torch.bool, kind=kind, **options).any()
    for shape in ((0, 4), (3, 0)):
        if kind == "prefix":
            options = {"prefix_lengths": np.zeros((shape[0], 1), dtype=np.int64)}
        empty = np.zeros(shape, dtype=np.int64)
        mask = build_attention_mask(segment_ids=empty, dtype=torch.bool, kind=kind, **options)
        assert mask.shape == (shape[0], 1, shape[1], shape[1])


def test_boundaries_are_taken_as_list_array_or_tensor_of_any_integer_dtype():
    expected = build_attention_mask([0, 2, 3], 4, torch.bool)
    for offsets in (
        (0, 2, 3),
        np.array([0, 2, 3], dtype=np.uint8),
        torch.tensor([0, 2, 3], dtype=torch.int32),
    ):
        assert torch.equal(build_attention_mask(offsets, 4, torch.bool), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "cu_seqlens or segment_ids must be given"),
        ({"cu_seqlens": [0, 1], "segment_ids": [[1]]}, "and not both"),
        ({"cu_seqlens": []}, "non-empty"),
        ({"cu_seqlens": [1, 2]}, "start at 0, got 1"),
        ({"cu_seqlens": [0, 3, 3, 5]}, "must rise, got 3 >= 3 at index 1"),
        ({"cu_seqlens": [0, 5, 3]}, "must rise, got 5 >= 3 at index 1"),
        ({"cu_seqlens": [0, 4, -1], "total": 4}, "must rise, got 4 >= -1 at index 1"),
        ({"cu_seqlens": [0, 3], "total": 2}, "total must hold the 3 tokens of cu_seqlens, got 2"),
        ({"cu_seqlens": [[0, 3]]}, r"cu_seqlens must be 1-D, got shape \(1, 2\)"),
        ({"segment_ids": [1, 1]}, r"segment_ids must be 2-D, got shape \(2,\)"),
        ({"segment_ids": [[1, -1]]}, "segment_ids must not be negative, got -1"),
        ({"segment_ids": [[1, 1]], "total": 3}, "total must be left out"),
        ({"cu_seqlens": [0, 3], "kind": "full"}, "kind must be one of"),
        ({"cu_seqlens": [0, 3], "pad_rows": "see"}, "pad_rows must be one of"),
        ({"cu_seqlens": [0, 3], "window": 0}, "window must be at least 1"),
        ({"cu_seqlens": [0, 3], "kind": "prefix"}, "prefix_lengths go with kind='prefix'"),
        ({"cu_seqlens": [0, 3], "prefix_lengths": [1]}, "prefix_lengths go with kind='prefix'"),
        ({"segment_ids": [[1], [1]], "kind": "prefix", "prefix_lengths": [1]}, r"\(2, documents\)"),
        ({"cu_seqlens": [0, 3], "kind": "prefix", "prefix_lengths": [-1]}, "must not be negative"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(BatchError, match=message):
        build_attention_mask(dtype=torch.bool, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 2], 2, torch.int32), "dtype must be torch.bool or one of"),
        (([0, 2], 2), "take the dtype that attention computes in"),
        (([0, 2], 2, "float32"), "dtype must be"),
        (([0.0, 2.0], 2, torch.bool), "cu_seqlens must hold integers"),
        ((torch.tensor([0.0, 2.0]), 2, torch.bool), "cu_seqlens must hold integers"),
        (([0, 2], 2.0, torch.bool), "total must be an integer"),
    ],
)
def test_wrong_types_are_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        build_attention_mask(*arguments)


@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
@pytest.mark.parametrize("window", [300, 2**63 - 1, 2**70])
def test_a_window_larger_than_the_row_is_none(kind, window):
    for ids in ([[1] * 200 + [2] * 100], [[1, 2, 1, 0] * 75]):
        masks = [
            build_attention_mask(segment_ids=ids, dtype=torch.bool, kind=kind, window=one)
            for one in (window, None)
        ]
        assert torch.equal(*masks)


def test_a_prefix_larger_than_the_row_is_the_whole_document():
    for length in (300, 2**63 - 1):
        mask = build_attention_mask([0, 2, 5], dtype=torch.bool, kind="prefix", prefix_lengths=[0, length])
        assert mask[0, 0].int().tolist() == [
            [1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            *[[0, 0, 1, 1, 1]] * 3,
        ]
