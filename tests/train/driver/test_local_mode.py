"""Local mode: a run in the driver has the storage, the checkpoints and the end that a normal one has."""

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray.train
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from raypack.audit import verify
from raypack.checkpoint.locate import last_checkpoint, open_path
from raypack.errors import CheckpointError
from raypack.source import write_source
from raypack.train import get_good_checkpoint, get_loader, report
from tests.conftest import documents_table, long_tailed
from tests.support import train_functions
from tests.support.local_ray import local_ray
from tests.support.running import recipe_of

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_ray(train_functions):
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("local-mode")
    before, tempfile.tempdir = tempfile.tempdir, str(place / "temporary")
    (place / "temporary").mkdir()
    yield place
    tempfile.tempdir = before


@pytest.fixture(scope="module")
def recipe(place):
    lengths = long_tailed(601, seed=5)
    source = write_source(str(place / "source"), [documents_table(lengths, labels=True)])
    return recipe_of(source, backend="direct")


def fit(train, place, recipe, name, **config):
    return TorchTrainer(
        train,
        train_loop_config={"recipe": recipe, **config},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(
            name=name,
            storage_path=str(place / "storage"),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


def train(config):
    """Count steps as a model that is saved would; reports every 4 steps and after the loop."""
    checkpoint = get_good_checkpoint() if "good" in config else ray.train.get_checkpoint()
    model = json.loads((Path(checkpoint.path) / "model.json").read_text()) if checkpoint else 0
    with get_loader(config["recipe"], **({"checkpoint": checkpoint} if "good" in config else {})) as loader:
        assert loader.steps_done == model

        def save(directory):
            (Path(directory) / "model.json").write_text(str(loader.steps_done))

        for step in loader:
            list(step)
            step.commit()
            if loader.steps_done % 4 == 0:
                report({"steps": loader.steps_done}, loader, save=save)
            if loader.steps_done == config.get("stop"):
                return
        report({"steps": loader.steps_done}, loader, save=save)


def trained_by_others(config):
    """Report weights with ray.train.report in place of raypack's, or nothing at all."""
    with get_loader(config["recipe"]) as loader, tempfile.TemporaryDirectory() as directory:
        for step in loader:
            list(step)
            step.commit()
            if step.index == 2:
                break
        if config.get("fails"):
            raise ZeroDivisionError
        if config.get("reports"):
            checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report({"steps": loader.steps_done}, checkpoint=checkpoint)


def checkpoints(run):
    return sorted(name for name in os.listdir(run) if name.startswith("step_"))


@pytest.fixture(scope="module")
def finished(place, recipe):
    """A run that was stopped after a report, gone on with, and started again when it was finished."""
    run = place / "storage/run"
    first = fit(train, place, recipe, "run", stop=8)
    stopped = checkpoints(run)
    second = fit(train, place, recipe, "run")
    ended = checkpoints(run)
    third = fit(train, place, recipe, "run")
    return run, [first, second, third], [stopped, ended, checkpoints(run)]


def test_checkpoints_lie_in_the_runs_storage_and_are_found_at_the_next_start(finished, place):
    run, results, (stopped, ended, _) = finished
    assert [name[:13] for name in stopped] == ["step_00000004", "step_00000008"]
    assert results[0].metrics == {"steps": 8}
    assert results[1].path == str(run)
    assert results[1].checkpoint.path == f"{run}/{ended[-1]}" == last_checkpoint(*open_path(run))
    audit = verify(run)
    assert audit.ok, audit.findings
    assert [attempt.first_step for attempt in audit.attempts] == [0, 8]
    assert len(ended) == 2  # num_to_keep
    assert os.listdir(place / "temporary") == []


def test_a_finished_run_that_is_started_again_writes_no_other_checkpoint(finished):
    _, results, (_, ended, again) = finished
    assert again == ended
    assert results[2].metrics == results[1].metrics
    assert results[2].checkpoint.path == results[1].checkpoint.path


def test_a_damaged_last_checkpoint_is_refused_with_the_way_on_and_that_way_works(finished, place, recipe):
    run, _, (_, ended, _) = finished
    os.truncate(run / ended[-1] / "raypack/state.json", 300)
    with pytest.raises(CheckpointError) as refused:
        fit(train, place, recipe, "run")
    told = str(refused.value)
    assert "state.json: must have" in told
    assert f"The newest good checkpoint of this run is {ended[0]}: " in told
    assert "checkpoint = raypack.train.get_good_checkpoint() in place of ray.train.get_checkpoint()" in told
    assert "get_loader(..., checkpoint=checkpoint)" in told
    result = fit(train, place, recipe, "run", good=True)
    assert result.metrics["steps"] == int(ended[-1][5:13])
    audit = verify(run)
    assert audit.ok, audit.findings
    assert audit.attempts[-1].first_step == int(ended[0][5:13])


@pytest.mark.parametrize("reports", [False, True])
def test_a_run_that_saved_nothing_says_so_as_its_last_line(place, recipe, caplog, reports):
    fit(trained_by_others, place, recipe, "nothing", reports=reports)
    last = caplog.records[-1]
    assert last.levelno == logging.ERROR
    told = last.getMessage()
    assert "run 'nothing' has ended with 3 committed steps (0 to 2) in no checkpoint: call" in told
    assert "ray.train.report in its place keeps no state of the data" in told


def test_a_run_that_failed_says_what_is_lost_and_no_remedy(place, recipe, caplog):
    with pytest.raises(ZeroDivisionError):
        fit(trained_by_others, place, recipe, "failed", fails=True)
    told = caplog.records[-1].getMessage()
    assert told == "run 'failed' has failed with 3 committed steps (0 to 2) in no checkpoint; they are lost"


def test_a_train_function_that_alone_imports_raypack_is_refused_with_the_remedy(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    import raypack.train
    raypack.train.get_loader(raypack.train.PackedData(source={str(tmp_path)!r}, maximum_tokens=64))

if __name__ == "__main__":
    config = RunConfig(name="late", storage_path={str(tmp_path)!r})
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=0), run_config=config).fit()
""")
    address = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=address, check=False)
    assert "in local mode raypack.train must be imported before trainer.fit() is called" in done.stderr
