"""Where Ray's internals have moved or storage fails in its own way: strict runs fail, others are told."""

import errno
import logging
import shutil
import sys
from types import SimpleNamespace

import pyarrow.fs as pafs
import pytest
import ray
from ray.train.v2._internal.execution import context as train_context

from raypack import guards
from raypack.errors import DegradedError
from raypack.train import kept_counts
from raypack.train.elastic import worker_context
from raypack.train.reporting import saving, sending, uploading


@pytest.fixture(params=["moved", "another"])
def without_context(request, monkeypatch):
    """Ray's train context is elsewhere, or another one."""
    monkeypatch.setattr(guards, "_logged", set())
    if request.param == "moved":
        monkeypatch.setitem(sys.modules, "ray.train.v2._internal.execution.context", None)
    else:
        monkeypatch.setattr(train_context, "get_train_context", lambda: SimpleNamespace())


def test_outside_of_a_train_function_no_node_is_about_to_go_and_nothing_is_told(caplog):
    assert saving.preempted_nodes() == frozenset()
    assert not caplog.records


def test_preemptions_that_cannot_be_seen_are_told_once(without_context, lenient, caplog):
    assert [saving.preempted_nodes() for _ in range(3)] == [frozenset()] * 3
    (record,) = caplog.records
    assert "cannot see which nodes will be taken away" in record.getMessage()


def test_preemptions_that_cannot_be_seen_fail_a_strict_run(without_context):
    with pytest.raises(DegradedError, match="cannot see which nodes will be taken away"):
        saving.preempted_nodes()


def test_an_elastic_range_that_cannot_be_read_is_told_and_the_present_size_taken(
    without_context, lenient, caplog
):
    assert worker_context._max_world_size(3) == 3
    assert "cannot read the elastic range of workers, taking 3" in caplog.text


def test_an_elastic_range_that_cannot_be_read_fails_a_strict_run(without_context):
    with pytest.raises(DegradedError, match="cannot read the elastic range"):
        worker_context._max_world_size(3)


def test_a_local_mode_that_cannot_be_told_is_an_error_in_a_strict_run_alone(monkeypatch, caplog):
    # Ray keeps the context of a local run after its end, and another test may have had one.
    monkeypatch.setattr("ray.train.v2._internal.execution.train_fn_utils._train_fn_utils", None)
    assert worker_context._local_context() is None  # no train function runs here
    monkeypatch.setitem(sys.modules, "ray.train.v2.api.context", None)
    with pytest.raises(DegradedError, match="local mode"):
        worker_context._local_context()
    monkeypatch.setenv(guards.STRICT_VARIABLE, "0")
    assert worker_context._local_context() is None
    assert "cannot tell whether Ray Train is in local mode" in caplog.text


class Throttled:
    """A storage context whose store refuses to write, and to be listed."""

    def __init__(self, folder):
        self.folder, self.tried = folder, 0
        self.storage_filesystem = SimpleNamespace(get_file_info=self._fail)

    def build_checkpoint_path_from_name(self, name):
        return f"{self.folder}/{name}"

    def persist_current_checkpoint(self, checkpoint, name):
        self.tried += 1
        self._fail()

    def _fail(self, *_):
        raise RuntimeError("SlowDown")


@pytest.fixture
def throttled(tmp_path, monkeypatch):
    monkeypatch.setattr(uploading, "WAITS_S", (0.01, 0.01))
    (tmp_path / "own").mkdir()
    (tmp_path / "own/model.pt").write_bytes(b"w")
    return Throttled("bucket"), ray.train.Checkpoint(str(tmp_path / "own"), pafs.LocalFileSystem())


def test_a_strict_run_does_not_try_an_upload_again(throttled):
    storage, checkpoint = throttled
    with pytest.raises(DegradedError, match=r"upload of bucket/one failed, once more in .*SlowDown"):
        uploading.upload(checkpoint, "one", storage)
    assert storage.tried == 1


def test_a_store_that_cannot_be_listed_either_is_told_and_the_first_error_is_what_counts(
    throttled, lenient, caplog
):
    storage, checkpoint = throttled
    with pytest.raises(uploading.CheckpointError, match=r"bucket/one cannot be written \(RuntimeError: Slow"):
        uploading.upload(checkpoint, "one", storage)
    assert storage.tried == 3
    assert "bucket/one cannot be listed: SlowDown" in caplog.text


def test_a_rank_directory_that_cannot_be_removed_is_told_and_fails_a_strict_run(monkeypatch, caplog):
    def refuse(*_, **__):
        raise OSError(errno.EBUSY, "busy")

    directory = sending.RankDirectory()
    path = directory.make()
    with monkeypatch.context() as patched:
        patched.setattr(sending.shutil, "rmtree", refuse)
        with pytest.raises(DegradedError, match="is left behind, remove it by hand"):
            directory.remove()
        patched.setenv(guards.STRICT_VARIABLE, "0")
        directory.remove()
    assert f"{path} is left behind, remove it by hand" in caplog.text
    shutil.rmtree(path)


@pytest.mark.parametrize(
    "act",
    [
        lambda: kept_counts.kept_count("bucket", "key", None),
        lambda: kept_counts.keep_count("bucket", "key", 3),
    ],
    ids=["read", "write"],
)
def test_a_store_with_errors_of_its_own_costs_a_count_again_and_fails_a_strict_run(act, monkeypatch, caplog):
    def expired(path):
        raise RuntimeError("the token has expired")

    monkeypatch.setattr(kept_counts, "locate", expired)
    with pytest.raises(DegradedError, match="the token has expired"):
        act()
    monkeypatch.setenv(guards.STRICT_VARIABLE, "0")
    with caplog.at_level(logging.INFO):
        assert act() is None
    assert "the token has expired" in caplog.text
