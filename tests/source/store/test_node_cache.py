"""A remote source is read through a cache on this machine."""

import multiprocessing
import pickle
import uuid

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from raypack.errors import SourceError
from raypack.source import open_source, write_source
from raypack.source.store.node_cache import cache_root

ROWS = pa.table({"input_ids": [[1, 2], [3], [4, 5, 6], [7]]})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYPACK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=["memory", "file"])
def uri(request, tmp_path):
    # "fsspec+file" takes the road of a remote store, and other processes see it too.
    return f"memory://{uuid.uuid4()}/s" if request.param == "memory" else f"fsspec+file://{tmp_path}/remote/s"


def files(cache):
    return sorted(p.name for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock")


def test_a_remote_source_is_the_same_source(cache, uri, tmp_path):
    source = write_source(uri, [ROWS], shard_tokens=3)
    assert source.fingerprint == write_source(tmp_path / "local", [ROWS], shard_tokens=3).fingerprint
    assert source.path == uri
    again = pickle.loads(pickle.dumps(source))
    assert again.take([3, 0, 2])["input_ids"].to_pylist() == [[7], [1, 2], [4, 5, 6]]
    assert again.supervised.tolist() == [1, 0, 2, 0]
    again.verify_contents()


def test_files_are_copied_only_when_they_are_touched(cache, uri):
    write_source(uri, [ROWS], shard_tokens=3)
    source = open_source(uri)
    assert files(cache) == []
    source.take([0])
    assert files(cache) == ["lengths.i32", "shard-000000.arrow"]
    assert (cache / "sources" / source.fingerprint / "lengths.i32").exists()


def test_a_copy_is_used_again_and_a_cut_one_replaced(cache, uri):
    source = write_source(uri, [ROWS], shard_tokens=3)
    source.take(range(4))
    copy = cache / "sources" / source.fingerprint / "shard-000000.arrow"
    before = copy.stat().st_mtime_ns
    open_source(uri).take([0])
    assert copy.stat().st_mtime_ns == before
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-1])
    assert open_source(uri).take([0])["input_ids"].to_pylist() == [[1, 2]]
    assert copy.read_bytes() == whole


def test_a_remote_file_with_other_contents_is_refused_and_not_kept(cache, uri):
    source = write_source(uri, [ROWS], shard_tokens=3)
    path = f"{uri.removeprefix('fsspec+')}/lengths.i32"
    with fsspec.open(path, "wb") as file:
        file.write(np.array([2, 2, 2, 1], "<i4").tobytes())
    with pytest.raises(SourceError, match=r"lengths\.i32 .* other values"):
        open_source(uri).take([0])
    assert files(cache) == []
    assert source.fingerprint


def test_existing_and_missing_targets_are_told_apart(cache, uri):
    with pytest.raises(SourceError, match="does not exist"):
        open_source(uri)
    write_source(uri, [ROWS])
    with pytest.raises(SourceError, match="exists already"):
        write_source(uri, [ROWS])


def test_a_failed_remote_write_leaves_nothing(cache, uri):
    bad = pa.table({"input_ids": [[1], [-1]]})
    with pytest.raises(SourceError, match="at least 0"):
        write_source(uri, [ROWS, bad], shard_tokens=1)
    with pytest.raises(SourceError, match="does not exist"):
        open_source(uri)


def _take(uri, queue):
    queue.put(open_source(uri).take([3, 0])["input_ids"].to_pylist())


def test_several_processes_fill_the_cache_at_once(cache, tmp_path):
    uri = f"fsspec+file://{tmp_path}/remote/s"
    write_source(uri, [ROWS], shard_tokens=3)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_take, args=(uri, queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert [queue.get(timeout=20) for _ in workers] == [[[7], [1, 2]]] * 4
    for worker in workers:
        worker.join()
    # Rows 0 and 3 lie in the first and the last shard.
    assert files(cache) == ["lengths.i32", "shard-000000.arrow", "shard-000002.arrow"]


def test_the_cache_lies_where_it_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv("RAYPACK_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_root() == tmp_path / "x" / "raypack"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "x"))
    assert cache_root().name.startswith("raypack-")
