"""What cannot be stored is refused, and a failure leaves nothing behind."""

import numpy as np
import pyarrow as pa
import pytest

from raypack.errors import SourceError
from raypack.source import write_source
from raypack.source.paths.location import locate

LISTS = pa.large_list(pa.int32())


def ids(documents, kind=LISTS):
    return pa.table({"input_ids": pa.array(documents, kind)})


def both(documents, labels):
    kind = pa.large_list(pa.int64())
    return pa.table({"input_ids": pa.array(documents, kind), "labels": pa.array(labels, kind)})


BAD = [
    ([ids([[1], None])], "input_ids must have no nulls; example 1 is null"),
    ([ids([[1], [2, 3], [4, None]])], "example 2 holds one"),
    ([ids([[1]]), ids([[2], [-5]])], "input_ids must be at least 0; example 2 has -5"),
    ([ids([[1]]), ids([[2], []])], "example 2 has no tokens"),
    ([ids([[2**31]], pa.list_(pa.int64()))], "input_ids must fit int32"),
    ([ids([[1.0]], pa.list_(pa.float32()))], "list or large_list of integers"),
    ([pa.table({"input_ids": [1, 2]})], "list or large_list of integers, got int64"),
    ([pa.table({"tokens": [[1]]})], "columns must be input_ids"),
    ([pa.table({"input_ids": [[1]], "text": ["a"]})], "select these columns"),
    ([ids([[1]]), both([[1]], [[1]])], "all batches must have the same columns"),
    ([both([[1, 2], [3]], [[1, 2], [3, 4]])], "example 1 has 2 labels and 1 tokens"),
    ([both([[1, 2], [3]], [[1, -100], [-1]])], r"labels must be at least 0, or -100 .*; example 1 has -1"),
    ([both([[1]], [None])], "labels must have no nulls"),
]


@pytest.mark.parametrize(("batches", "message"), BAD)
def test_a_value_that_cannot_be_stored_is_refused_and_nothing_is_left(tmp_path, batches, message):
    with pytest.raises(SourceError, match=message):
        write_source(tmp_path / "new" / "s", batches, shard_tokens=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("batches", [[{"input_ids": [[1]]}], [[1, 2]], [None]])
def test_batches_that_are_no_arrow_are_refused(tmp_path, batches):
    with pytest.raises(TypeError, match="pyarrow tables or record batches"):
        write_source(tmp_path / "s", batches)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_callers_own_leaves_nothing(tmp_path):
    def batches():
        yield ids([[1, 2], [3]])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_source(tmp_path / "s", batches(), shard_tokens=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", ["folder", "file", "source"])
def test_an_existing_target_is_refused_and_not_touched(tmp_path, make):
    target = tmp_path / "s"
    if make == "folder":
        target.mkdir()
    elif make == "file":
        target.write_text("mine")
    else:
        write_source(target, [ids([[1]])])
    before = [(p, p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(tmp_path.rglob("*"))]

    def never():
        raise AssertionError("the batches were read")
        yield

    with pytest.raises(SourceError, match="exists already"):
        write_source(target, never())
    assert [(p, p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(tmp_path.rglob("*"))] == before


def test_a_target_below_a_file_is_refused(tmp_path):
    (tmp_path / "f").write_text("mine")
    with pytest.raises((SourceError, NotADirectoryError)):
        write_source(tmp_path / "f" / "s", [ids([[1]])])
    assert (tmp_path / "f").read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "error"), [("", SourceError), (3, TypeError), (b"x", TypeError), (None, TypeError)]
)
def test_a_path_that_is_none_is_refused(path, error):
    with pytest.raises(error, match="path must be"):
        write_source(path, [])


def test_a_scheme_nobody_knows_is_named():
    with pytest.raises(SourceError, match=r"no file system for 'zzz://a/b'"):
        write_source("zzz://a/b", [])


@pytest.mark.parametrize("value", [0, -1])
def test_a_shard_must_hold_a_token(tmp_path, value):
    with pytest.raises(SourceError, match="shard_tokens must be at least 1"):
        write_source(tmp_path / "s", [], shard_tokens=value)


@pytest.mark.parametrize("prepared", [{"a": [1]}, {1: "a"}, {"a": np.int64(3)}])
def test_prepared_must_be_plain(tmp_path, prepared):
    with pytest.raises(TypeError, match="prepared must map str to plain values"):
        write_source(tmp_path / "s", [ids([[1]])], prepared=prepared)
    assert list(tmp_path.iterdir()) == []


def test_messages_show_no_secrets_of_a_uri():
    place = locate("s3://key:secret@bucket/folder?region=us-east-1&endpoint_override=localhost:1")
    assert place.label == "s3://bucket/folder"
    assert place.path == "bucket/folder"
    assert locate("memory://a/b").label == "memory://a/b"
    assert locate("file:///a%20b/c?d").label == "/a b/c?d"


@pytest.mark.parametrize("folder", ["s3://bucket/folder?region=us-east-1", "memory://folder", "/folder"])
def test_a_file_of_a_folder_is_found_by_its_own_name(folder):
    place = locate(folder)
    name = "sub/a b[1]%20.parquet"
    assert locate(place.child_uri(name)).path == place.child(name)
