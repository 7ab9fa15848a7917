"""The reference masks, against the definition cell by cell."""

import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from raypack.packing import build_4d_attention_mask, build_cross_doc_mask, tag_sub_sequences

FLOATS = [np.float16, np.float32, np.float64]


def allowed(ids, dtype=np.float32):
    return build_4d_attention_mask(np.asarray(ids), dtype)[:, 0] == 0


def by_definition(ids):
    batch, length = ids.shape
    out = np.zeros((batch, length, length), dtype=bool)
    for b in range(batch):
        for i in range(length):
            for j in range(i + 1):
                out[b, i, j] = ids[b, i] == ids[b, j] != 0
    return out


def test_the_shape_is_b_1_s_s_in_the_asked_dtype():
    for dtype in FLOATS:
        mask = build_4d_attention_mask(np.ones((2, 5), dtype=np.int64), dtype)
        assert mask.shape == (2, 1, 5, 5)
        assert mask.dtype == dtype


def test_one_document_is_zero_exactly_on_and_below_the_diagonal():
    assert (allowed([[1, 1, 1]])[0] == np.tri(3, dtype=bool)).all()


def test_ids_must_match_and_the_key_must_not_be_later():
    ids = np.array([[1, 1, 2, 2], [1, 2, 2, 3]])
    assert (allowed(ids) == by_definition(ids)).all()


def test_padding_is_wholly_blocked_its_diagonal_included():
    seen = allowed([[1, 1, 0, 0]])[0]
    assert not seen[2:].any()
    assert not seen[:, 2:].any()


def test_an_id_that_comes_again_sees_its_earlier_tokens():
    assert allowed([[1, 2, 1]])[0].tolist() == [
        [True, False, False],
        [False, True, False],
        [True, False, True],
    ]


def test_the_ids_of_three_four_two_token_documents_leave_nineteen_zeros():
    assert allowed([tag_sub_sequences([0, 3, 5, 9])]).sum() == 19


@pytest.mark.parametrize("dtype", FLOATS)
def test_blocked_cells_hold_the_finite_minimum_without_a_warning(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mask = build_4d_attention_mask(np.array([[1, 2]]), dtype)
    assert mask[0, 0, 1, 0] == np.finfo(dtype).min
    assert np.isfinite(mask).all()


def test_dtype_as_class_instance_or_string_gives_equal_results():
    ids = np.array([[1, 1, 2]])
    masks = [build_4d_attention_mask(ids, d) for d in (np.float16, np.dtype("float16"), "float16")]
    assert all((mask == masks[0]).all() and mask.dtype == np.float16 for mask in masks)


@pytest.mark.parametrize("dtype", [np.int32, bool, np.complex64, "int8", "nonsense", object()])
def test_an_integer_bool_or_complex_dtype_is_refused(dtype):
    with pytest.raises(TypeError, match="numpy float dtype"):
        build_4d_attention_mask(np.array([[1]]), dtype)


def test_an_empty_batch_or_row_gives_an_empty_mask():
    assert build_4d_attention_mask(np.empty((0, 4), np.int64), np.float32).shape == (0, 1, 4, 4)
    assert build_4d_attention_mask(np.empty((3, 0), np.int64), np.float32).shape == (3, 1, 0, 0)


def test_ids_that_are_not_2d_or_negative_are_refused():
    with pytest.raises(ValueError, match=r"2D \(B, S\), got shape \(2,\)"):
        build_4d_attention_mask(np.array([1, 2]), np.float32)
    with pytest.raises(ValueError, match="non-negative"):
        build_4d_attention_mask(np.array([[1, -2]]), np.float32)


def test_more_cells_than_the_cap_are_refused_with_advice_and_as_many_pass():
    with pytest.raises(ValueError, match=r"2147488281 cells, exceeding cap 2147483648.*varlen"):
        build_4d_attention_mask(np.ones((1, 46341), np.int8), np.float16)
    with pytest.raises(ValueError, match="exceeding cap"):
        build_4d_attention_mask(np.ones((0, 46341), np.int8), np.float16)
    ids = np.ones((2, 4), np.int8)
    assert build_4d_attention_mask(ids, np.float16, maximum_cells=32).size == 32
    with pytest.raises(ValueError, match="exceeding cap 31"):
        build_4d_attention_mask(ids, np.float16, maximum_cells=31)


def test_of_several_faults_the_order_is_2d_negative_cap_dtype():
    cases = [
        (np.array([-1]), "2D"),
        (np.full((1, 3), -1), "non-negative"),
        (np.full((1, 3), 1), "exceeding cap"),
    ]
    for ids, message in cases:
        with pytest.raises(ValueError, match=message):
            build_4d_attention_mask(ids, np.int32, maximum_cells=8)
    with pytest.raises(TypeError, match="float dtype"):
        build_4d_attention_mask(np.full((1, 2), 1), np.int32, maximum_cells=8)


def test_the_input_is_unchanged_and_its_memory_not_shared():
    ids = np.array([[1.0, 2.0]], dtype=np.float32)
    before = ids.copy()
    mask = build_4d_attention_mask(ids, np.float32)
    assert (ids == before).all()
    assert not np.shares_memory(ids, mask)


@given(
    hnp.arrays(np.int32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=14), elements=st.integers(0, 4))
)
@settings(max_examples=80, deadline=None)
def test_any_ids_follow_the_definition(ids):
    assert (allowed(ids) == by_definition(ids)).all()


def test_rows_longer_than_a_tile_follow_the_definition():
    ids = np.repeat([1, 2, 3, 0, 2], [300, 129, 1, 40, 128])[None]
    same = (ids[0][:, None] == ids[0][None, :]) & (ids[0] != 0)
    assert (allowed(ids)[0] == np.tril(same)).all()


def test_a_nan_id_blocks_its_own_row():
    assert allowed(np.array([[1.0, np.nan, 1.0]]))[0].sum(axis=1).tolist() == [1, 0, 2]


def test_a_list_is_no_array_of_ids():
    with pytest.raises(TypeError, match="numpy array, got list"):
        build_4d_attention_mask([[1, 2]], np.float32)


def test_nothing_near_the_size_of_the_mask_is_allocated_beside_it():
    ids = np.repeat([1, 2, 3], [1000, 1500, 500])[None]
    tracemalloc.start()
    mask = build_4d_attention_mask(ids, np.float16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.02 * mask.nbytes


def test_a_cross_document_mask_is_block_lower_triangular_uint8():
    mask = build_cross_doc_mask([0, 2, 3], 3)
    assert mask.dtype == np.uint8
    assert mask.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert build_cross_doc_mask([0], 0).shape == (0, 0)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_both_masks_agree(lengths):
    edges = np.concatenate([[0], np.cumsum(lengths)])
    assert (build_cross_doc_mask(edges, edges[-1]) == allowed([tag_sub_sequences(edges)])[0]).all()


@pytest.mark.parametrize(
    ("boundaries", "length", "message"),
    [
        ([], 0, "non-empty"),
        ([1, 5], 5, r"start at 0, got boundaries\[0\]=1"),
        ([0, 3], 5, r"end at seq_length=5, got boundaries\[-1\]=3"),
        ([0, 4, 2, 5], 5, "strictly increasing, got 4 >= 2 at index 1"),
        ([0, 5], -1, "seq_length must be at least 0"),
    ],
)
def test_cross_document_boundaries_that_do_not_fit_are_refused(boundaries, length, message):
    with pytest.raises(ValueError, match=message):
        build_cross_doc_mask(boundaries, length)


def test_a_cross_document_mask_past_the_cap_is_refused():
    with pytest.raises(ValueError, match="exceeding cap 24"):
        build_cross_doc_mask([0, 5], 5, maximum_cells=24)
    assert build_cross_doc_mask([0, 5], 5, maximum_cells=25).sum() == 15
