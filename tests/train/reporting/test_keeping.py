"""What Ray Train's own checkpoint manager deletes, while some checkpoints cannot be resumed from."""

import os
import shutil
from types import SimpleNamespace

import pyarrow.fs as pafs
import pytest
from ray.train import Checkpoint, CheckpointConfig, RunConfig

from raypack.checkpoint.registered import registered
from raypack.train.driver.local_mode import LocalRun
from raypack.train.reporting.keeping import manager_of
from tests.conftest import long_tailed
from tests.support.local_run import Attempt, patch
from tests.support.running import recipe_of


@pytest.fixture
def run(tmp_path, monkeypatch, make_source):
    """Makes and registers checkpoints of a run: good ones, damaged ones, ones without data."""
    patch(monkeypatch)
    source = make_source(long_tailed(60))
    with Attempt(recipe_of(source, backend="direct"), source, 1) as attempt:
        yield SimpleNamespace(attempt=attempt, storage=tmp_path / "storage", place=tmp_path / "storage/run")


def local_run(run, **keep):
    config = CheckpointConfig(**keep)
    return LocalRun(RunConfig(name="run", storage_path=str(run.storage), checkpoint_config=config))


def add(run, to, *kinds):
    for number, (kind, score) in enumerate(kinds):
        path = run.attempt.save(run.place, f"{len(os.listdir(run.place)):x}{number:x}".ljust(32, "0"))
        path = path.rename(path.with_name(kind))
        if kind.startswith("damaged"):
            os.truncate(path / "raypack/state.json", 200)
        if kind.startswith("foreign"):
            shutil.rmtree(path / "raypack")
        to.register(Checkpoint(str(path), pafs.LocalFileSystem()), {"score": score})


def kept(run):
    return sorted(path.name for path in run.place.iterdir() if path.is_dir())


@pytest.mark.parametrize(
    ("keep", "after_faults"),
    [(1, ["good1", "foreign"]), (2, ["good1", "damaged2", "foreign"]), (5, None)],
)
def test_the_newest_good_checkpoint_is_kept_while_newer_ones_are_not_good(run, keep, after_faults):
    to = local_run(run, num_to_keep=keep)
    run.place.mkdir(parents=True, exist_ok=True)
    add(run, to, ("good0", 0), ("good1", 0), ("damaged1", 0), ("damaged2", 0), ("foreign", 0))
    after_faults = after_faults or ["good0", "good1", "damaged1", "damaged2", "foreign"]
    assert kept(run) == sorted(after_faults)
    listed = [one.path.rsplit("/", 1)[1] for one in registered(pafs.LocalFileSystem(), str(run.place))]
    assert listed == after_faults[::-1]  # newest first
    assert local_run(run, num_to_keep=keep).last.path.endswith("/foreign")
    add(run, local_run(run, num_to_keep=keep), ("good2", 0), ("good3", 0), ("good4", 0))
    assert kept(run) == ["damaged2", "foreign", "good2", "good3", "good4"][-keep:]


def test_a_score_decides_what_is_kept_beside_the_newest_good_checkpoint(run):
    to = local_run(run, num_to_keep=1, checkpoint_score_attribute="score")
    run.place.mkdir(parents=True, exist_ok=True)
    add(run, to, ("good0", 9), ("good1", 3), ("damaged1", 5))
    assert kept(run) == ["damaged1", "good0", "good1"]


def test_without_num_to_keep_nothing_is_deleted(run):
    to = local_run(run)
    run.place.mkdir(parents=True, exist_ok=True)
    add(run, to, ("good0", 0), ("damaged1", 0), ("good1", 0))
    assert kept(run) == ["damaged1", "good0", "good1"]


def test_another_ray_whose_manager_cannot_be_found_is_named():
    with pytest.raises(LookupError, match="keeps the checkpoint manager elsewhere"):
        manager_of(SimpleNamespace(_callbacks=[]))
