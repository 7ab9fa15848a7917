"""Device masks against the definition cell by cell, and against the numpy reference."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raypack.collate import BatchError, build_attention_mask, painting
from raypack.collate.intervals import (
    runs_by_search,
    runs_of_offsets,
)
from raypack.collate.painting import bands
from raypack.packing import build_4d_attention_mask

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
KINDS = ["causal", "bidirectional", "prefix"]


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


def ids_of(lengths, padding):
    ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return np.concatenate([ids, np.zeros(padding, dtype=ids.dtype)])[None]


masks = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(1, 9), max_size=5),
        "padding": st.integers(0, 4),
        "kind": st.sampled_from(KINDS),
        "window": st.none() | st.integers(1, 6),
        "pad_rows": st.sampled_from(["blocked", "self"]),
        "seed": st.integers(0, 9),
    }
)


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
    from_offsets = build_attention_mask(offsets, ids.shape[1], torch.bool, **options)
    assert from_offsets.shape == (1, 1, ids.shape[1], ids.shape[1])
    assert (from_offsets[:, 0].numpy() == expected).all()
    assert torch.equal(from_offsets, build_attention_mask(segment_ids=ids, dtype=torch.bool, **options))


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=3), masks)
@settings(max_examples=80, deadline=None)
def test_any_segment_ids_follow_the_definition_also_where_an_id_comes_again(rows, case):
    ids = np.array(rows)
    options = {name: case[name] for name in ("kind", "window", "pad_rows")}
    prefix = np.random.default_rng(case["seed"]).integers(0, 5, (len(rows), 3))
    expected = by_definition(ids, prefix=prefix, **options)
    if case["kind"] == "prefix":
        options["prefix_lengths"] = prefix
    assert (
        build_attention_mask(segment_ids=ids, dtype=torch.bool, **options)[:, 0].numpy() == expected
    ).all()


@pytest.mark.parametrize("lengths", [[700], [300, 1, 63, 64, 65, 129], [3] * 150, [1, 200, 2, 2, 128, 30]])
@pytest.mark.parametrize("window", [None, 1, 50, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_many_bands_equal_the_plain_expression(lengths, window, kind):
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


@given(st.lists(st.integers(1, 400), max_size=20))
@settings(deadline=None)
def test_bands_cover_all_rows_and_keep_long_documents_to_themselves(lengths):
    edges = np.cumsum([0, *lengths]).tolist()
    cut = list(bands(edges if lengths else []))
    assert [i for start, stop in cut for i in range(start, stop)] == list(range(edges[-1]))
    for start, stop in cut:
        assert stop - start <= 128 + 64
        inside = [e for e in edges if start < e < stop]
        assert not inside or all(b - a < 128 for a, b in zip([start, *inside], [*inside, stop], strict=True))


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(0, 3), st.integers(0, 4))
def test_documents_are_looked_up_on_a_device_as_they_are_repeated_on_the_host(lengths, spare, padding):
    offsets = torch.tensor([*np.cumsum([0, *lengths]), *[sum(lengths)] * spare], dtype=torch.int32)
    total = sum(lengths) + padding
    host, device = runs_of_offsets(offsets, total), runs_by_search(offsets, total)
    for name in ("ids", "starts", "stops"):
        real = host.ids != 0  # of padding no start is ever read
        ours, theirs = getattr(host, name), getattr(device, name)
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours[real], theirs[real])
    assert torch.equal(host.ids, device.ids)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_write_the_same_cells(kind, monkeypatch):
    offsets, options = [0, 300, 301, 900, 1000], {"kind": kind, "window": 70}
    if kind == "prefix":
        options["prefix_lengths"] = [40, 1, 200, 7]
    alone = build_attention_mask(offsets, 1100, torch.bfloat16, **options)
    monkeypatch.setattr(painting, "THREADED", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(build_attention_mask(offsets, 1100, torch.bfloat16, **options), alone)


def test_an_error_of_a_thread_is_raised(monkeypatch):
    def fail(*arguments):
        raise MemoryError("no room")

    monkeypatch.setattr(painting, "THREADED", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(painting, "_paint_band", fail)
    with pytest.raises(MemoryError, match="no room"):
        build_attention_mask([0, 300], 300, torch.bool)


@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
@pytest.mark.parametrize("scattered", [False, True])
def test_one_allocation_of_the_mask_and_nothing_like_it(kind, scattered):
    ids = ids_of([700, 1, 1299], 48)
    if scattered:
        ids[0, 900:910] = 1
    tracemalloc.start()
    mask = build_attention_mask(segment_ids=ids, dtype=torch.float16, kind=kind)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (1.25 if scattered else 1.05) * mask.nbytes


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
