"""Checkpoints that cannot be written: named on every rank, nobody waits, the one before stays valid.

Ranks are threads that meet in the real rendezvous and write to Ray Train's own storage context.
"""

import errno
import os
import resource
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray.train
from ray.train.v2._internal.execution.storage import StorageContext

from raypack.actors import rendezvous as rendezvous_module
from raypack.actors import rendezvous_client
from raypack.actors.rendezvous import Rendezvous
from raypack.actors.rendezvous_client import RendezvousClient
from raypack.audit import verify
from raypack.checkpoint.files import write_state
from raypack.checkpoint.reading import read_state
from raypack.errors import CheckpointError, LoaderError
from raypack.train import PackedData, report
from raypack.train.reporting import sending, uploading
from tests.conftest import long_tailed
from tests.support.failing_storage import failing_storage, opened, order
from tests.support.local_run import Attempt, LocalActor, patch

WORLD = 2


@pytest.fixture(autouse=True)
def local(monkeypatch, tmp_path):
    patch(monkeypatch)

    def wait(futures, timeout):
        return [future for future in futures if future.result(timeout) or True], []

    get = SimpleNamespace(
        get=lambda future, timeout: future.result(timeout),
        wait=wait,
        exceptions=ray.exceptions,
        is_initialized=bool,
    )
    monkeypatch.setattr(rendezvous_client, "ray", get)
    monkeypatch.setattr(rendezvous_module, "exit_after_grace", _nothing)
    monkeypatch.setattr(uploading, "WAITS_S", (0.01, 0.02, 0.03))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(sending.tempfile, "tempdir", str(tmp_path / "temporary"))


async def _nothing():
    pass


class Train:
    """What a report needs of Ray Train: it stores what all ranks uploaded and keeps a list of it."""

    def __init__(self, tmp_path, monkeypatch):
        self.orders, self.registered, self.refused = tmp_path / "orders", [], None
        self.storage = StorageContext(str(tmp_path / "storage"), "run", failing_storage(self.orders))
        context = SimpleNamespace(get_storage=lambda: self.storage)
        monkeypatch.setattr(ray.train, "get_context", lambda: context)
        monkeypatch.setattr(ray.train, "report", self.report)
        monkeypatch.setattr(ray.train, "get_checkpoint", self.last)

    def last(self):
        paths = self.registered[-1:]
        return ray.train.Checkpoint(paths[0], self.storage.storage_filesystem) if paths else None

    def report(self, metrics, *, checkpoint, checkpoint_dir_name, checkpoint_upload_fn, **options):
        if metrics["rank"] == self.refused:
            raise ValueError("metrics are refused")
        uploaded = checkpoint_upload_fn(checkpoint, checkpoint_dir_name) if checkpoint else None
        if uploaded is not None and uploaded.path not in self.registered:
            self.registered.append(uploaded.path)


@pytest.fixture
def world(tmp_path, monkeypatch, make_source):
    train = Train(tmp_path, monkeypatch)
    source = make_source(long_tailed(200))
    recipe = PackedData(source=source, maximum_tokens=64, batches_per_step=4, backend="direct")
    actor = LocalActor(lambda: Rendezvous(WORLD))
    with Attempt(recipe, source, WORLD) as run:
        for rank, loader in enumerate(run.loaders):
            loader._rendezvous = RendezvousClient(actor, rank)
            loader._worker = replace(loader.worker, group=f"{tmp_path}{rank}")  # a process of its own
        steps = [iter(loader) for loader in run.loaders]
        yield SimpleNamespace(train=train, loaders=run.loaders, step=lambda: _step(steps))
    actor.stop()


def _step(steps):
    for one in steps:
        step = next(one)
        list(step)
        step.commit()


def report_all(world, failing=None, **options):
    """Report on all ranks, on one with a failing ``save``; return what each raised, and how long it took."""
    raised = [None] * WORLD

    def go(rank, loader):
        def save(directory):
            with open(f"{directory}/shard-{rank}.pt", "wb") as file:
                file.write(b"w" * 3000)
            if rank == failing:
                raise RuntimeError("disk full")

        try:
            report({"rank": rank}, loader, save=save, timeout_s=20.0, **options)
        except Exception as error:
            raised[rank] = error

    threads = [threading.Thread(target=go, args=item) for item in enumerate(world.loaders)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return raised, time.monotonic() - started


def assert_the_first_report_stays(world, tmp_path):
    assert len(world.train.registered) == 1
    audit = verify(world.train.registered[0])
    assert audit.consistent, audit.findings
    assert audit.attempts[0].steps == 1
    assert os.listdir(tmp_path / "temporary") == []


@pytest.fixture
def reported(world):
    world.step()
    raised, _ = report_all(world)
    assert raised == [None, None]
    world.step()
    return world


LASTING = {
    errno.ENOSPC: "free space in the storage_path of the run",
    errno.EACCES: "get permission to write in the storage_path of the run",
}


@pytest.mark.parametrize("code", LASTING)
@pytest.mark.parametrize(("file", "rank"), [("shard-1.pt", 1), ("state.json", 0)])
def test_an_upload_that_cannot_be_is_named_with_its_file_and_remedy_on_every_rank(
    reported, tmp_path, code, file, rank
):
    order(reported.train.orders, file, code)
    raised, seconds = report_all(reported)
    assert isinstance(raised[rank], CheckpointError)
    assert f"{file} cannot be written (" in str(raised[rank])
    assert f"[Errno {code}]" in str(raised[rank])
    assert LASTING[code] in str(raised[rank])
    other = raised[1 - rank]
    assert isinstance(other, LoaderError)
    assert f"rank {rank} failed in this report" in str(other)
    assert f"{file} cannot be written" in str(other)
    assert seconds < 10  # of the 20 that ranks wait for one that says nothing
    assert_the_first_report_stays(reported, tmp_path)


def test_a_throttled_upload_is_tried_again(reported, lenient, caplog, tmp_path):
    order(reported.train.orders, "shard-0.pt", 0, times=3)
    raised, _ = report_all(reported)
    assert raised == [None, None]
    assert caplog.text.count("once more in") == 3
    assert len(reported.train.registered) == 2
    assert all(verify(path).consistent for path in reported.train.registered)
    assert os.listdir(tmp_path / "temporary") == []


def test_an_upload_that_stays_throttled_is_given_up(reported, lenient, tmp_path):
    order(reported.train.orders, "shard-0.pt", 0)
    raised, _ = report_all(reported)
    assert "SlowDown" in str(raised[0])
    assert "see to the storage in the storage_path of the run, then start the run again" in str(raised[0])
    assert_the_first_report_stays(reported, tmp_path)


def test_a_save_that_fails_on_one_rank_ends_the_report_on_all_and_the_next_one_is_fine(reported, tmp_path):
    raised, seconds = report_all(reported, failing=1)
    assert isinstance(raised[1], RuntimeError)
    assert isinstance(raised[0], LoaderError)
    assert "rank 1 failed in this report" in str(raised[0])
    assert "RuntimeError: disk full" in str(raised[0])
    assert seconds < 10
    assert_the_first_report_stays(reported, tmp_path)
    assert report_all(reported)[0] == [None, None]
    assert verify(reported.train.registered[-1]).consistent


def test_a_report_that_ray_train_refuses_on_one_rank_leaves_no_other_waiting(reported, tmp_path):
    reported.train.refused = 0
    raised, seconds = report_all(reported)
    assert str(raised[0]) == "metrics are refused"
    assert "rank 0 failed in this report" in str(raised[1])
    assert "Ray Train did not take its report" in str(raised[1])
    assert seconds < 10
    assert_the_first_report_stays(reported, tmp_path)


def test_a_local_directory_that_cannot_be_made_is_named(reported, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(sending.tempfile, "tempdir", str(tmp_path / "file"))
    raised, _ = report_all(reported)
    assert all("cannot be made (Not a directory)" in str(error) for error in raised)
    assert all("TMPDIR" in str(error) for error in raised)
    assert_the_first_report_stays(reported, tmp_path)


def test_an_upload_behind_the_training_is_named_by_the_rank_that_fails(reported, tmp_path):
    order(reported.train.orders, "shard-1.pt", errno.ENOSPC)
    raised, _ = report_all(reported, upload="async")
    assert "shard-1.pt cannot be written" in str(raised[1])
    assert os.listdir(tmp_path / "temporary") == []


def test_an_upload_is_sync_or_async(reported):
    with pytest.raises(LoaderError, match="upload must be one of 'sync', 'async'; got 'later'"):
        report({}, reported.loaders[0], upload="later")


def test_a_disk_that_is_full_or_not_writable_is_named_with_the_file(tmp_path):
    (tmp_path / "state.json").mkdir()
    with pytest.raises(CheckpointError, match=r"state\.json cannot be written \(Is a directory\)"):
        write_state(tmp_path, {"a": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(CheckpointError, match=r"state\.json cannot be written \(File too large\): free"):
            write_state(tmp_path / "full", {"a": "x" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_without_permission_is_named(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match=r"cannot be written \(Permission denied\): get permission"):
        write_state(tmp_path / "new", {"a": 1})


def test_a_restore_reads_the_state_alone_and_never_the_weights(reported):
    orders = reported.train.orders
    (orders / "opened").unlink(missing_ok=True)
    path = reported.train.registered[0]
    read_state(reported.train.storage.storage_filesystem, path)
    assert sorted(opened(orders)) == [f"{path}/raypack/manifest.json", f"{path}/raypack/state.json"]
