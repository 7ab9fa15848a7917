"""The length table: what it accepts, what it knows, what it costs."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching import LengthTable
from raypack.batching import lengths as module
from raypack.batching.lengths import lengths_digest
from raypack.choices import INT32_MAX
from raypack.errors import SamplerError

KNOWN = {"minimum": 2, "minimum_index": 2, "maximum": 5, "maximum_index": 1}


class Untouchable(np.ndarray):
    """An array whose numbers nobody may read."""

    def __getitem__(self, key):
        raise AssertionError("the table was read")


def untouchable(values):
    return np.array(values, np.int32).view(Untouchable)


@pytest.mark.parametrize(
    "lengths",
    [[3, 5, 2], (3, 5, 2), np.array([3, 5, 2], np.uint8), np.array([3, 5, 2], ">i4"), np.array([3, 5, 2])],
)
def test_any_integers_make_the_same_table(lengths):
    table = LengthTable.of(lengths)
    assert table.array.dtype == np.int32
    assert table.array.tolist() == [3, 5, 2]
    assert len(table) == 3
    assert table == LengthTable([3, 5, 2])
    assert hash(table) == hash(LengthTable([3, 5, 2]))
    assert table != LengthTable([3, 5, 2, 1])
    assert LengthTable.of(table) is table


def test_int32_is_viewed_and_read_only():
    array = np.array([3, 5, 2], np.int32)
    table = LengthTable(array)
    assert np.shares_memory(table.array, array)
    with pytest.raises(ValueError, match="read-only"):
        table.array[0] = 1
    array[0] = 4  # the caller's own array stays writable
    assert np.shares_memory(np.asarray(table), array)
    assert np.asarray(table, dtype=np.int64).tolist() == [4, 5, 2]
    assert not np.shares_memory(np.array(table, copy=True), array)


def test_a_memory_map_stays_one(tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([3, 5, 2], np.int32))
    table = LengthTable(np.load(tmp_path / "lengths.npy", mmap_mode="r"))
    assert isinstance(table.array, np.memmap)


def test_what_is_known_is_not_computed():
    table = LengthTable(untouchable([3, 5, 2]), "digest", **KNOWN)
    assert table.digest == "digest"
    assert (table.minimum, table.minimum_index, table.maximum, table.maximum_index) == (2, 2, 5, 1)
    assert table.first_outside(1, 5) is None
    assert pickle.loads(pickle.dumps(LengthTable([3, 5, 2], "digest", **KNOWN))).digest == "digest"


def test_the_rest_is_computed_when_asked_for():
    table = LengthTable([5, 2, 5, 2])
    assert (table.minimum, table.minimum_index, table.maximum, table.maximum_index) == (2, 1, 5, 0)
    partly = LengthTable(np.array([5, 2, 5, 2], np.int32), minimum=2)
    assert (partly.maximum, partly.maximum_index, partly.minimum_index) == (5, 0, 1)


def test_an_empty_table_has_no_extremes():
    table = LengthTable([])
    assert (len(table), table.minimum, table.maximum, table.minimum_index) == (0, None, None, None)
    assert table.first_outside(1, 1) is None


@given(lengths=st.lists(st.integers(0, INT32_MAX), min_size=1, max_size=40), cut=st.integers(1, 40))
def test_any_cut_gives_the_same_digest_and_extremes(lengths, cut):
    array = np.array(lengths, np.int32)
    digest = lengths_digest(array[start : start + cut] for start in range(0, len(array), cut))
    whole = module._CHUNK
    try:
        module._CHUNK = cut
        table = LengthTable(array)
        assert table.digest == digest
        assert (table.minimum, table.maximum) == (min(lengths), max(lengths))
        assert table.minimum_index == lengths.index(min(lengths))
        assert table.maximum_index == lengths.index(max(lengths))
        outside = [index for index, length in enumerate(lengths) if not 5 <= length <= 1000]
        assert table.first_outside(5, 1000) == (outside[0] if outside else None)
    finally:
        module._CHUNK = whole


def test_the_digest_covers_the_number_of_lengths_and_never_changes():
    assert LengthTable([3, 5, 2]).digest == "baaec8a29421f9fd3f29b28778c2f4e2"
    assert LengthTable([0]).digest != LengthTable([0, 0]).digest != LengthTable([]).digest


@pytest.mark.parametrize(
    ("lengths", "fault", "named"),
    [
        ([1.0], TypeError, "float64"),
        ([True], TypeError, "bool"),
        (["a"], TypeError, "lengths"),
        ([None], TypeError, "object"),
        (np.empty(0), TypeError, "float64"),
        ([[1, 2]], SamplerError, r"\(1, 2\)"),
        (np.int32(3), SamplerError, "one-dimensional"),
        ([4, -1], SamplerError, "-1 at index 1"),
        (np.array([4, -1], np.int32), SamplerError, "-1 at index 1"),
        ([4, 2**31], SamplerError, "2147483648 at index 1"),
        (np.array([2**63], np.uint64), SamplerError, "index 0"),
    ],
)
def test_what_is_no_table_of_lengths_is_refused(lengths, fault, named):
    with pytest.raises(fault, match=named):
        LengthTable(lengths)


@pytest.mark.parametrize(
    ("known", "fault"),
    [
        ({"digest": ""}, SamplerError),
        ({"digest": 5}, TypeError),
        ({"minimum": -1}, SamplerError),
        ({"maximum": 2**31}, SamplerError),
        ({"minimum": 1.0}, TypeError),
        ({"minimum_index": 3}, SamplerError),
    ],
)
def test_what_is_said_to_be_known_is_checked_in_form(known, fault):
    with pytest.raises(fault, match=next(iter(known))):
        LengthTable([3, 5, 2], **known)


def test_a_manifest_that_lies_about_its_extremes_is_found_out():
    table = LengthTable(np.array([3, 5], np.int32), minimum=0, minimum_index=0, maximum=5, maximum_index=1)
    with pytest.raises(SamplerError, match="manifest"):
        table.first_outside(1, 5)
