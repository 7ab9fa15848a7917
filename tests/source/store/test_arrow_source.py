"""Writing and reading a source: what goes in comes out, in any order."""

import pickle
import threading
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raypack.batching.lengths import LengthTable
from raypack.errors import SourceError
from raypack.source import open_source, write_source
from raypack.source.manifest.record import MANIFEST_FILE
from tests.support.making import KINDS, make_source

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9)
DOCUMENTS = st.lists(IDS, max_size=12)


def table(documents, labels=None, kind=None):
    kind = kind or pa.large_list(pa.int32())
    columns = {"input_ids": pa.array(documents, kind)}
    if labels is not None:
        columns["labels"] = pa.array(labels, kind)
    return pa.table(columns)


LABELS = [[-100, 1], [2, -100, 2], [-100], [7, 7, 7, 7]]
ROWS = table([[5, 6], [7, 8, 9], [1], [2, 3, 4, 5]], LABELS)


@pytest.fixture(params=KINDS)
def source(tmp_path, request):
    return make_source(tmp_path / "s", request.param, [ROWS])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=DOCUMENTS, data=st.data())
def test_any_documents_come_back_in_any_order(tmp_path_factory, kind, documents, data):
    path = tmp_path_factory.mktemp("p") / "s"
    cut = data.draw(st.integers(0, len(documents)))
    with_labels = data.draw(st.booleans())
    labels = [[-100 if token % 3 == 0 else token for token in ids] for ids in documents]
    parts = [
        table(documents[part], labels[part] if with_labels else None)
        for part in (slice(0, cut), slice(cut, None))
    ]
    options = {"shard_tokens": data.draw(st.integers(1, 30))} if kind == "store" else {}
    source = make_source(path, kind, parts, **options)
    indices = data.draw(st.lists(st.integers(0, len(documents) - 1), max_size=20)) if documents else []

    taken = source.take(indices)

    assert taken["input_ids"].to_pylist() == [documents[i] for i in indices]
    assert len(source) == len(documents)
    assert np.asarray(source.supervised).tolist() == [
        sum(label != -100 for label in (row if with_labels else ids)[1:])
        for ids, row in zip(documents, labels, strict=True)
    ]
    ids, lengths, flat_labels = source.take_flat(indices)
    assert ids.dtype == lengths.dtype == np.int32
    assert ids.tolist() == [token for i in indices for token in documents[i]]
    assert lengths.tolist() == [len(documents[i]) for i in indices]
    if with_labels and documents:
        assert taken["labels"].to_pylist() == [labels[i] for i in indices]
        assert flat_labels.tolist() == [label for i in indices for label in labels[i]]
    else:
        assert flat_labels is None or not documents
    assert [source[i]["input_ids"].tolist() for i in indices] == [documents[i] for i in indices]


@settings(max_examples=25, deadline=None)
@given(documents=DOCUMENTS, cuts=st.lists(st.integers(0, 12), max_size=3), limit=st.integers(1, 20))
def test_the_fingerprint_does_not_depend_on_how_rows_come_in_batches(
    tmp_path_factory, documents, cuts, limit
):
    root = tmp_path_factory.mktemp("p")
    edges = [0, *sorted(cuts), len(documents)]
    parts = [table(documents[a:b]) for a, b in pairwise(edges) if b >= a]
    one = write_source(root / "one", [table(documents)], shard_tokens=limit)
    many = write_source(
        root / "many", parts if max(edges) <= len(documents) else [table(documents)], shard_tokens=limit
    )
    assert one.fingerprint == many.fingerprint
    assert [p.read_bytes() for p in sorted((root / "one").iterdir())] == [
        p.read_bytes() for p in sorted((root / "many").iterdir())
    ]


@pytest.mark.parametrize("value", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.uint32(), pa.uint64()])
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list])
@pytest.mark.parametrize("kind", KINDS)
def test_any_integer_list_type_is_accepted(tmp_path, kind, lists, value):
    source = make_source(tmp_path / "s", kind, [table([[1, 2], [127]], kind=lists(value))])
    assert source[0]["input_ids"].dtype == np.int32
    assert source.take([1, 0]).schema == pa.schema({"input_ids": pa.large_list(pa.int32())})
    assert source.take([1, 0])["input_ids"].to_pylist() == [[127], [1, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_sliced_batches_and_chunked_tables_keep_their_rows(tmp_path, kind):
    whole = table([[1], [2, 2], [3, 3, 3], [4]], [[1], [2, 2], [3, -100, 3], [4]])
    parts = [whole.slice(1, 2), pa.concat_tables([whole.slice(3), whole.slice(0, 1)]), whole.slice(0, 0)]
    source = make_source(tmp_path / "s", kind, parts)
    assert source.take(range(4))["input_ids"].to_pylist() == [[2, 2], [3, 3, 3], [4], [1]]
    assert source.supervised.tolist() == [1, 1, 0, 0]


def test_a_record_batch_reader_and_a_single_table_are_accepted(tmp_path):
    one = write_source(tmp_path / "a", table([[1, 2]]))
    two = write_source(tmp_path / "b", table([[1, 2]]).to_reader())
    assert one.fingerprint == two.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_source_is_legal(tmp_path, kind):
    make_source(tmp_path / "s", kind, [table([])])
    source = open_source(tmp_path / "s")
    assert len(source) == 0
    assert source.take([]).num_rows == 0
    assert source.supervised.tolist() == []
    with pytest.raises(SourceError, match=r"\[0, 0\)"):
        source.take([0])


def test_shards_are_bounded_and_one_longer_example_has_its_own(tmp_path):
    source = write_source(tmp_path / "s", [ROWS], shard_tokens=5)
    assert [shard.tokens for shard in source.manifest.shards] == [5, 5]
    assert [shard.examples for shard in source.manifest.shards] == [2, 2]


def test_a_longer_example_than_a_shard_is_stored_alone(tmp_path):
    source = write_source(tmp_path / "s", [table([[1], [2] * 9, [3]])], shard_tokens=4)
    assert [shard.tokens for shard in source.manifest.shards] == [1, 9, 1]
    assert source[1]["input_ids"].tolist() == [2] * 9


def test_labels_count_without_each_first_one(source):
    assert source.supervised.tolist() == [1, 1, 0, 3]
    assert source.manifest.supervised_tokens == 5
    assert source.has_labels
    assert source[1]["labels"].tolist() == [2, -100, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_extremes_in_the_manifest_are_the_first_of_their_length(tmp_path, kind):
    manifest = make_source(tmp_path / "s", kind, [table([[1, 1], [1], [2], [3, 3]])]).manifest
    assert (manifest.shortest.length, manifest.shortest.index) == (1, 1)
    assert (manifest.longest.length, manifest.longest.index) == (2, 0)


def test_tables_are_mapped_read_only(source):
    source.take([0])
    with pytest.raises(ValueError, match="read-only"):
        source.supervised[0] = 3
    # What had to be decoded is the caller's own copy.
    if not any(shard is not None for shard in source._shards.mapped):
        source[0]["input_ids"][0] = 3
        assert source[0]["input_ids"].tolist() == [5, 6]
        return
    with pytest.raises(ValueError, match="read-only"):
        source[0]["input_ids"][0] = 3


@pytest.mark.parametrize("indices", [[4], [-1], [0, 2**40], np.array([2**63], np.uint64)])
def test_an_index_out_of_range_is_refused(source, indices):
    with pytest.raises(SourceError, match=r"indices must lie in \[0, 4\)"):
        source.take(indices)


@pytest.mark.parametrize("indices", [[True, False], [0.0], [[0]], "ab", 3, None])
def test_indices_that_are_no_integers_are_refused(source, indices):
    with pytest.raises(TypeError, match="indices must be a sequence of integers"):
        source.take(indices)


def test_a_single_index_follows_the_sequence_protocol(source):
    assert [len(example["input_ids"]) for example in source] == [2, 3, 1, 4]
    assert source[np.int32(2)]["input_ids"].tolist() == [1]
    for index in (4, -1):
        with pytest.raises(IndexError, match=r"\[0, 4\)"):
            source[index]
    with pytest.raises(TypeError):
        source[True]


def test_it_pickles_as_its_path_and_reopens(source):
    data = pickle.dumps(source)
    assert len(data) < 500
    again = pickle.loads(data)
    assert again.fingerprint == source.fingerprint
    assert again.take([3])["labels"].to_pylist() == [[7, 7, 7, 7]]


def test_a_pickled_source_that_changed_is_refused(source, tmp_path):
    data = pickle.dumps(source)
    for file in (tmp_path / "s").iterdir():
        file.unlink()
    (tmp_path / "s").rmdir()
    write_source(tmp_path / "s", [table([[1]])])
    with pytest.raises(SourceError, match="never change a source in use"):
        pickle.loads(data)


def test_a_relative_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write_source("s", [table([[1]])])
    assert source.path == str(tmp_path / "s")
    assert open_source(f"file://{tmp_path}/s").path == source.path


def test_many_threads_may_take_at_once(source):
    wrong = []

    def take():
        for _ in range(50):
            if source.take_flat([3, 0])[0].tolist() != [2, 3, 4, 5, 5, 6]:
                wrong.append(1)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_length_table_comes_with_digest_and_extremes(source):
    lengths = source.lengths
    assert lengths.array.tolist() == [2, 3, 1, 4]
    assert lengths.digest == source.manifest.lengths.digest == LengthTable([2, 3, 1, 4]).digest
    assert (lengths.minimum, lengths.minimum_index, lengths.maximum, lengths.maximum_index) == (1, 2, 4, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_is_the_last_file_written(tmp_path, kind):
    source = make_source(tmp_path / "s", kind, [table([[1]])])
    times = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "s").iterdir()}
    assert max(times, key=times.get) == MANIFEST_FILE
    assert set(times) == {entry.file for entry in source.manifest.entries} | {MANIFEST_FILE}


@pytest.mark.parametrize("kind", KINDS)
def test_contents_can_be_verified_and_the_fingerprint_is_theirs(tmp_path, kind):
    source = make_source(tmp_path / "a", kind, [ROWS])
    source.verify_contents()
    assert make_source(tmp_path / "b", kind, [ROWS]).fingerprint == source.fingerprint
    other = table([[5, 6], [7, 8, 9], [1], [2, 3, 4, 6]], LABELS)
    assert make_source(tmp_path / "c", kind, [other]).fingerprint != source.fingerprint
    cut = table([[5, 6, 7], [8, 9], [1], [2, 3, 4, 5]], [[-100, 1, 2], [-100, 2], *LABELS[2:]])
    assert make_source(tmp_path / "d", kind, [cut]).fingerprint != source.fingerprint
