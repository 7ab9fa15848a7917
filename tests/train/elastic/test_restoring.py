"""Which checkpoint a run goes on from; files are real, Ray Train only says which one is the last."""

import json
import os
import shutil
from types import SimpleNamespace

import pyarrow.fs as pafs
import pytest
import ray.train
from ray.train import Checkpoint, RunConfig

from raypack.checkpoint.registered import SNAPSHOT, registered
from raypack.errors import CheckpointError, LoaderError
from raypack.train import get_good_checkpoint
from raypack.train.driver.local_mode import LocalRun, current_run, run_locally
from raypack.train.elastic.restoring import Origin
from tests.conftest import long_tailed
from tests.support.local_run import Attempt, patch
from tests.support.running import recipe_of

LOCAL = pafs.LocalFileSystem()


@pytest.fixture
def run(tmp_path, monkeypatch, make_source):
    """A run with four checkpoints; the last has other metrics than the rest."""
    patch(monkeypatch)
    source = make_source(long_tailed(60))
    here = LocalRun(RunConfig(name="run", storage_path=str(tmp_path)))
    paths = []
    with Attempt(recipe_of(source, backend="direct"), source, 1) as attempt:
        for number in range(4):
            path = attempt.save(tmp_path / "run", f"{number:x}" * 32)
            here.register(Checkpoint(str(path), LOCAL), {"number": number})
            paths.append(path)
    monkeypatch.setattr(ray.train, "get_checkpoint", lambda: here.last)
    return SimpleNamespace(here=here, paths=paths, folder=str(tmp_path / "run"))


def damage(path):
    os.truncate(path / "raypack/state.json", 200)


def test_checkpoints_are_listed_the_last_report_first_with_their_metrics(run):
    listed = registered(LOCAL, run.folder)
    assert [one.path for one in listed] == [str(path) for path in reversed(run.paths)]
    assert [one.metrics["number"] for one in listed] == [3, 2, 1, 0]


@pytest.mark.parametrize("name", ["../other", "", "..", None, "a/b"])
def test_a_list_that_names_what_is_no_folder_of_the_run_is_refused(run, name):
    values = json.loads((run.paths[0].parent / SNAPSHOT).read_text())
    values["checkpoint_results"][1]["checkpoint_dir_name"] = name
    (run.paths[0].parent / SNAPSHOT).write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="not Ray Train's list of checkpoints"):
        registered(LOCAL, run.folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"checkpoint_results": [1]', "[" * 5000])
def test_a_damaged_list_is_refused(run, text):
    (run.paths[0].parent / SNAPSHOT).write_text(text)
    with pytest.raises(CheckpointError, match="not Ray Train's list of checkpoints"):
        registered(LOCAL, run.folder)


def test_where_the_last_checkpoint_is_good_it_is_the_good_one(run):
    assert get_good_checkpoint() is run.here.last
    assert Origin().is_last
    assert Origin(get_good_checkpoint()).is_last


def test_the_newest_good_checkpoint_is_named_at_the_start_and_returned(run, caplog):
    damage(run.paths[3])
    shutil.rmtree(run.paths[2] / "raypack")
    with pytest.raises(CheckpointError, match=rf"state\.json: must have.*good .* is {run.paths[1].name}: "):
        Origin().state(None)
    good = get_good_checkpoint()
    assert good.path == str(run.paths[1])
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    origin = Origin(good)
    assert not origin.is_last
    assert origin.state(None).report_id == "1" * 32


def test_where_no_checkpoint_is_good_all_faults_are_named(run):
    for path in run.paths:
        damage(path)
    with pytest.raises(CheckpointError, match=r"no other good checkpoint: give the run another name"):
        Origin().state(None)
    with pytest.raises(CheckpointError, match="no checkpoint of this run is good") as refused:
        get_good_checkpoint()
    assert all(path.name in str(refused.value) for path in run.paths)


def test_a_run_without_checkpoints_begins(monkeypatch):
    monkeypatch.setattr(ray.train, "get_checkpoint", lambda: None)
    assert get_good_checkpoint() is None
    assert Origin().state(None) is None
    assert not Origin().is_last


@pytest.mark.parametrize("name", [None, "train"])
def test_a_checkpoint_that_others_reported_is_refused_and_begun_under_only_when_that_is_said(
    run, name, caplog
):
    shutil.rmtree(run.paths[3] / "raypack")
    with pytest.raises(CheckpointError) as refused:
        Origin().state(name)
    told = str(refused.value)
    assert f"{run.paths[3]} was reported without raypack.train.report and holds no state of the data" in told
    assert "would begin the data anew under trained weights" in told
    assert "get_loader(..., foreign='begin')" in told
    assert (run.paths[2].name in told) == (name is None)  # that one holds no loader of such a name
    assert Origin(foreign="begin").state(name) is None
    assert "the data begins anew" in caplog.text


def test_a_checkpoint_of_ours_is_gone_on_from_whatever_is_to_be_done_with_others(run):
    assert Origin(foreign="begin").state(None).report_id == "3" * 32
    damage(run.paths[3])
    with pytest.raises(CheckpointError, match="must have"):
        Origin(foreign="begin").state(None)


def test_a_loader_may_begin_anew_beside_checkpoints(run):
    assert Origin(None).state(None) is None


def test_a_trainer_in_local_mode_whose_storage_is_no_place_for_ray_train_runs_without_raypack_alone(tmp_path):
    config = RunConfig(name="run", storage_path="results")

    def train():
        with pytest.raises(LoaderError, match="storage_path must be an absolute path or a URI, got"):
            current_run()
        return "ran"

    result = run_locally(lambda _, train: train(), SimpleNamespace(run_config=config), train)
    assert result == "ran"
    with pytest.raises(LoaderError, match=r"must be imported before trainer\.fit"):
        current_run()


def test_what_a_loader_goes_on_from_is_checked_at_the_door():
    with pytest.raises(TypeError, match=r"checkpoint must be a ray.train.Checkpoint, None or 'last', got 7"):
        Origin(7)
    with pytest.raises(TypeError, match=r"got '/runs/one'; raypack.train.get_good_checkpoint\(\) returns"):
        Origin("/runs/one")
    with pytest.raises(LoaderError, match="foreign must be one of 'refuse', 'begin'"):
        Origin(foreign="ignore")
