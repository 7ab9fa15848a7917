"""List columns of every kind, slice and chunking give the same flat tokens, from the memory they lie in."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.collate import BatchError
from raypack.data.arrow_rows import flat_column, integer_column

KINDS = {
    "list": lambda kind: pa.list_(kind),
    "large_list": lambda kind: pa.large_list(kind),
}


def table_of(column):
    return pa.table({"input_ids": column})


def flat(column):
    values, lengths = flat_column(table_of(column), "input_ids")
    return values.tolist(), lengths.tolist()


@given(
    rows=st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=9),
    cuts=st.lists(st.integers(0, 9), max_size=3),
    kind=st.sampled_from(sorted(KINDS)),
    width=st.sampled_from([pa.int32(), pa.int64(), pa.uint16()]),
    skip=st.integers(0, 2),
)
def test_lists_come_flat_whatever_their_kind_chunks_and_slices(rows, cuts, kind, width, skip):
    array = pa.array(rows, KINDS[kind](width))
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    chunks = [array.slice(a, b - a) for a, b in pairwise(edges)]
    column = pa.chunked_array(chunks, array.type).slice(skip)
    expected = rows[skip:]
    assert flat(column) == ([token for row in expected for token in row], [len(row) for row in expected])


@pytest.mark.parametrize("skip", [0, 1, 3])
def test_lists_of_a_fixed_size_are_taken_sliced_too(skip):
    array = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)).slice(skip)
    expected = [[1, 2], [3, 4], [5, 6]][skip:]
    assert flat(array) == (sum(expected, []), [2] * len(expected))


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 2)])
def test_one_chunk_is_not_copied(kind):
    array = pa.array([[9, 9], [1, 2], [3, 4]], kind).slice(1)
    values, _ = flat_column(table_of(array), "input_ids")
    address = np.frombuffer(array.values.buffers()[1], np.int32).ctypes.data
    assert values.ctypes.data == address + 2 * 4
    assert not values.flags.writeable


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1], None, [2]]), "'input_ids' must have no null rows, got one at row 1"),
        (pa.array([[1], [None, 2]]), "'input_ids' must have no null tokens, got 1"),
        (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), "no null rows, got one at row 1"),
        (pa.array([[1, None]], pa.list_(pa.int32(), 2)), "no null tokens, got 1"),
    ],
)
def test_nulls_are_refused(column, message):
    with pytest.raises(BatchError, match=message):
        flat(column)


def test_nulls_outside_of_a_slice_are_not_seen():
    assert flat(pa.array([[None, 1], None, [2, 3], [None]]).slice(2, 1)) == ([2, 3], [2])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, 2]), "must hold lists of integers, got int64"),
        (pa.array([[1.5]]), "must hold lists of integers, got list<"),
        (pa.array(["ab"]), "must hold lists of integers, got string"),
        (pa.array([[[1]]]), "must hold lists of integers, got list<"),
        (pa.array([[True]]), "must hold lists of integers, got list<"),
    ],
)
def test_what_is_no_list_of_integers_is_refused(column, message):
    with pytest.raises(TypeError, match=message):
        flat(column)


def test_a_missing_column_is_named_beside_those_that_are_there():
    with pytest.raises(BatchError, match=r"must have a column 'tokens', got \['input_ids'\]"):
        flat_column(table_of(pa.array([[1]])), "tokens")


def test_plain_integers_are_taken_and_others_refused():
    table = pa.table({"n": pa.chunked_array([[3], [1, 2]]), "x": [0.5, 1, 2], "hole": [1, None, 2]})
    assert integer_column(table, "n").tolist() == [3, 1, 2]
    with pytest.raises(TypeError, match="'x' must hold integers, got double"):
        integer_column(table, "x")
    with pytest.raises(BatchError, match="'hole' must have no nulls, got 1"):
        integer_column(table, "hole")


def varying(rows, shapes):
    """Rows as Ray Data stores tensors of varying shapes."""
    data = pa.array([np.ravel(row) for row in rows], pa.large_list(pa.int64()))
    return pa.StructArray.from_arrays([data, pa.array(shapes)], ["data", "shape"])


def test_tensors_of_varying_lengths_are_taken_and_those_of_more_dimensions_refused():
    assert flat(varying([[1, 2], [3]], [[2], [1]])) == ([1, 2, 3], [2, 1])
    with pytest.raises(TypeError, match="must hold tensors of one dimension, got 2"):
        flat(varying([[1, 2], [3]], [[2], [1, 1]]))
    assert flat(varying([[9, 9], [1, 2], [3]], [[2], [2], [1]]).slice(1)) == ([1, 2, 3], [2, 1])
