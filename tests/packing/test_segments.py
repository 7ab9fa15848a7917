"""Segment ids, positions and label edges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.packing import (
    document_offsets,
    ignore_label_edges,
    position_ids,
    segment_ids,
    tag_sub_sequences,
)

some_lengths = st.lists(st.integers(1, 9), max_size=12)


@pytest.mark.parametrize(("boundaries", "ids"), [([0, 3, 5, 9], [1, 1, 1, 2, 2, 3, 3, 3, 3]), ([0, 1], [1])])
def test_boundaries_number_their_tokens_from_one(boundaries, ids):
    assert tag_sub_sequences(boundaries) == ids


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [([], "non-empty"), (None, "non-empty"), ([0], "at least 2 entries"), (np.array([0]), "at least 2")],
)
def test_no_boundary_or_one_is_refused(boundaries, message):
    with pytest.raises(ValueError, match=message):
        tag_sub_sequences(boundaries)


def test_a_first_boundary_that_is_not_zero_is_named():
    with pytest.raises(ValueError, match="start at 0, got 4"):
        tag_sub_sequences([4, 5])


@pytest.mark.parametrize(
    ("boundaries", "values"), [([0, 5, 5], "5 >= 5 at index 1"), ([0, 5, 3], "5 >= 3 at index 1")]
)
def test_boundaries_that_do_not_rise_are_named_with_both_values_and_position(boundaries, values):
    with pytest.raises(ValueError, match=f"strictly increasing, got {values}"):
        tag_sub_sequences(boundaries)


def test_more_segments_than_the_cap_are_refused_before_the_start_is_looked_at():
    with pytest.raises(ValueError, match=r"too many segments \(3\); cap is 2"):
        tag_sub_sequences([1, 2, 3, 4], maximum_segments=2)
    assert tag_sub_sequences([0, 1, 2], maximum_segments=2) == [1, 2]
    at_the_cap = range(1_000_001)
    assert len(tag_sub_sequences(np.arange(1_000_001))) == 1_000_000
    with pytest.raises(ValueError, match="too many segments"):
        tag_sub_sequences([*at_the_cap, 1_000_001])


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda v: np.array(v, dtype=np.uint8)])
def test_list_tuple_and_array_give_the_same_plain_list(kind):
    ids = tag_sub_sequences(kind([0, 2, 3]))
    assert ids == [1, 1, 2]
    assert type(ids) is list
    assert {type(value) for value in ids} == {int}


@pytest.mark.parametrize("boundaries", [[0, 2.0], np.array([0.0, 2.0]), [False, True], [0, "2"]])
def test_boundaries_that_are_no_integers_are_refused(boundaries):
    with pytest.raises(TypeError, match="boundaries must be"):
        tag_sub_sequences(boundaries)


def test_boundaries_of_two_dimensions_or_beyond_int64_are_refused():
    with pytest.raises(ValueError, match=r"1-D, got shape \(2, 2\)"):
        tag_sub_sequences(np.zeros((2, 2), dtype=np.int64))
    with pytest.raises(ValueError, match=r"below 2\*\*63"):
        tag_sub_sequences([0, 2**70])


@given(some_lengths)
def test_segments_and_positions_equal_the_loop_over_documents(lengths):
    assert segment_ids(lengths).tolist() == [i + 1 for i, n in enumerate(lengths) for _ in range(n)]
    assert position_ids(lengths).tolist() == [p for n in lengths for p in range(n)]
    offsets = document_offsets(lengths)
    assert offsets.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    if lengths:
        assert tag_sub_sequences(offsets) == segment_ids(lengths).tolist()


def test_label_edges_are_ignored_in_a_copy():
    labels = np.array([5, 6, 7, 8, 9])
    assert ignore_label_edges(labels, [3, 2]).tolist() == [-100, 6, 7, -100, 9]
    assert labels.tolist() == [5, 6, 7, 8, 9]
    with pytest.raises(ValueError, match="add up to the 5 labels, got 4"):
        ignore_label_edges(labels, [2, 2])


def test_a_length_below_one_is_named():
    with pytest.raises(ValueError, match="positive, got 0 at document 1"):
        document_offsets([3, 0])
