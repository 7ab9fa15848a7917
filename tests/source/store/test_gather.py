"""Examples of mapped shards in one call: the same as row by row, and refused where rows disagree."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raypack.errors import SourceError
from raypack.source import open_source
from raypack.source.store import gather as gathering
from raypack.source.store.gather import can_gather, gather, spans
from raypack.source.store.shards import Shard
from tests.support.making import make_source

LISTS = pa.large_list(pa.int32())
DOCUMENTS = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9), min_size=1, max_size=6)


def shard_of(documents, *, labels=False, dtype=np.int32, is_mapped=True):
    edges = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    ids = np.array([token for document in documents for token in document], dtype)
    marks = np.where(ids % 3 == 0, -100, ids).astype(dtype) if labels else None
    return Shard(memoryview(edges[:-1].copy()), memoryview(edges[1:].copy()), ids, marks, is_mapped)


@given(shards=st.lists(DOCUMENTS, min_size=1, max_size=4), labels=st.booleans(), data=st.data())
@settings(max_examples=60)
def test_examples_come_in_the_order_asked_however_short_they_are(shards, labels, data):
    places = [(number, row) for number, documents in enumerate(shards) for row in range(len(documents))]
    asked = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=40))
    numbers, rows = (np.array(column, np.int64) for column in zip(*asked, strict=True))
    made = [shard_of(documents, labels=labels) for documents in shards]
    lengths = np.array([len(shards[number][row]) for number, row in asked], np.int32)

    starts, ends, wrong = spans(made, numbers, rows, lengths)
    input_ids, marks = gather(made, numbers, starts, ends)

    expected = np.array([token for number, row in asked for token in shards[number][row]], np.int32)
    assert not len(wrong)
    assert input_ids.dtype == np.int32
    assert input_ids.tolist() == expected.tolist()
    assert input_ids.flags.writeable
    if labels:
        assert marks.tolist() == np.where(expected % 3 == 0, -100, expected).tolist()
    else:
        assert marks is None


def test_examples_of_another_length_and_outside_of_their_shard_are_named():
    shard = shard_of([[1, 2], [3], [4, 5, 6]])
    shard.ends[2] = 9
    rows = np.array([0, 2, 1])
    _, _, wrong = spans([shard], np.zeros(3, np.int64), rows, np.array([2, 6, 2], np.int32))
    assert wrong.tolist() == [1, 2]


def test_a_negative_length_is_wrong_even_where_its_shard_agrees():
    shard = shard_of([[1, 2], [3]])
    shard.ends[1] = 0
    assert spans([shard], np.zeros(1, np.int64), np.array([1]), np.array([-2], np.int32))[2].tolist() == [0]


def test_what_is_not_mapped_or_not_int32_or_too_large_or_scattered_is_taken_otherwise(monkeypatch):
    plain = shard_of([[1, 2], [3]], labels=True)
    assert can_gather([plain], 16)
    assert not can_gather([plain], 15)
    assert not can_gather([plain, plain], 31)
    assert not can_gather([], 0)
    assert not can_gather([plain, None], 100)
    assert not can_gather([shard_of([[1]], is_mapped=False)], 100)
    assert not can_gather([shard_of([[1]], dtype=np.int64)], 100)
    monkeypatch.setattr(gathering, "_MOST_BYTES", 11)
    assert not can_gather([plain], 100)


@pytest.mark.parametrize("kind", ["store", "ipc_file", "ipc_stream"])
@pytest.mark.parametrize("labels", [False, True])
def test_a_source_gives_the_same_both_ways(tmp_path, monkeypatch, kind, labels):
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 99, rng.integers(1, 9)).tolist() for _ in range(40)]
    columns = {"input_ids": pa.array(documents, LISTS)}
    if labels:
        columns["labels"] = pa.array([[-100, *document[1:]] for document in documents], LISTS)
    options = {"shard_tokens": 60} if kind == "store" else {}
    source = make_source(tmp_path / "s", kind, [pa.table(columns)], **options)
    indices = rng.integers(0, 40, 400)
    calls = []
    monkeypatch.setattr(
        "raypack.source.store.arrow_source.gather", lambda *args: calls.append(1) or gather(*args)
    )
    row_by_row, at_once = source.take_flat(indices), source.take_flat(indices)
    assert calls == [1]  # a shard is mapped when it is first asked for
    for one, other in zip(row_by_row, at_once, strict=True):
        assert (one is None and other is None) or np.array_equal(one, other)


def test_lengths_that_do_not_agree_with_a_mapped_shard_are_refused(tmp_path):
    rows = pa.table({"input_ids": pa.array([[1, 2], [3], [4, 5, 6]], LISTS)})
    make_source(tmp_path / "s", "store", [rows])
    np.array([2, 3, 1], "<i4").tofile(tmp_path / "s" / "lengths.i32")
    source = open_source(tmp_path / "s")
    source.take_flat([0])
    with pytest.raises(SourceError, match=r"example 1 lies at tokens 2 to 3 of shard-000000\.arrow"):
        source.take_flat([0] * 20 + [1, 2])


@pytest.mark.parametrize("times", [1, 20])
def test_offsets_that_fall_are_refused_though_the_table_of_lengths_agrees(tmp_path, times):
    rows = pa.table({"input_ids": pa.array([[1, 2], [3], [4, 5, 6]], LISTS)})
    make_source(tmp_path / "s", "store", [rows])
    shard = tmp_path / "s" / "shard-000000.arrow"
    good, damaged = (np.array(offsets, "<i8").tobytes() for offsets in ([0, 2, 3, 6], [0, 2, 1, 6]))
    assert shard.read_bytes().count(good) == 1
    shard.write_bytes(shard.read_bytes().replace(good, damaged))
    np.array([2, -1, 5], "<i4").tofile(tmp_path / "s" / "lengths.i32")
    source = open_source(tmp_path / "s")
    source.take_flat([0])
    with pytest.raises(SourceError, match=r"example 1 lies at tokens 2 to 1 of shard-000000\.arrow"):
        source.take_flat([1, 0] * times)
