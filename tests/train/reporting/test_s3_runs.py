"""A run whose source and checkpoints lie on S3: stopped, resumed on another world, audited, looked into.

Uploads of the first attempt go behind the training, and one checkpoint is kept.
"""

import json
import os

import pyarrow.fs as pafs
import pytest
from click.testing import CliRunner
from ray.train import CheckpointConfig

from raypack.audit import verify
from raypack.cli import main
from raypack.source import write_source
from tests.conftest import documents_table, long_tailed
from tests.support import failing_storage, running, storage_functions
from tests.support.local_ray import local_ray

pytest.importorskip("moto")
from tests.support.s3_server import s3_server

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("s3-runs")


@pytest.fixture(scope="module", autouse=True)
def s3(place):
    """A server, and a Ray whose processes find it by their environment."""
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment, "RAYPACK_CACHE_DIR": str(place / "cache")}.items():
            patch.setenv(name, value)
        with local_ray(storage_functions, failing_storage, cpus=running.CPUS):
            yield


def fit(place, recipe, workers, **config):
    (place / "tmp").mkdir(exist_ok=True)
    run = {"storage_path": "s3://bucket/runs", "checkpoint_config": CheckpointConfig(num_to_keep=1)}
    env = {"TMPDIR": str(place / "tmp")}
    return running.fit(
        storage_functions.train, place, recipe, workers, name="one", run=run, env=env, **config
    )


def checkpoints():
    filesystem, _ = pafs.FileSystem.from_uri("s3://bucket/runs")
    infos = filesystem.get_file_info(pafs.FileSelector("bucket/runs/one"))
    return [info.base_name for info in infos if info.base_name.startswith("step_")]


@pytest.fixture(scope="module")
def stopped(place):
    """Two workers, uploads behind the training."""
    write_source("s3://bucket/source", [documents_table(long_tailed(901, seed=6), labels=True)])
    recipe = running.PackedData(
        source="s3://bucket/source",
        maximum_tokens=running.BUDGET,
        batches_per_step=running.BATCHES,
        seed=3,
        backend="direct",
    )
    fit(place, recipe, 2, stop_after=11, upload="async")
    return recipe


@pytest.fixture(scope="module")
def halfway(stopped, place):
    """What there is before the run goes on."""
    return checkpoints(), verify("s3://bucket/runs/one"), os.listdir(place / "tmp")


@pytest.fixture(scope="module")
def done(stopped, halfway, place):
    return fit(place, stopped, 1)


def test_uploads_behind_the_training_are_all_there_when_it_stops(halfway):
    kept, audit, temporary = halfway
    assert audit.consistent, audit.findings
    assert not audit.ok
    assert sum(a.steps for a in audit.attempts) == 12
    assert len(kept) == 1
    assert kept[0].startswith("step_00000012_w2_a0_")
    assert [name for name in temporary if name.startswith("raypack")] == []


def test_the_run_goes_on_from_s3_on_another_number_of_workers(done, place):
    assert done.metrics["checkpoint"]
    audit = verify("s3://bucket/runs/one")
    assert audit.ok, audit.findings
    assert [(a.world_size, a.first_step) for a in audit.attempts] == [(2, 0), (1, 12)]
    assert [(e.complete, e.trained) for e in audit.epochs] == [(True, 901)]
    assert len(checkpoints()) == 1
    assert [name for name in os.listdir(place / "tmp") if name.startswith("raypack")] == []


def test_the_state_is_shown_and_dealt_from_s3(done):
    shown = CliRunner().invoke(main, ["state", "show", "s3://bucket/runs/one", "--json"])
    (values,) = json.loads(shown.output)
    assert values["source"] | {"fault": ""} == values["source"]
    assert values["left"]["examples"] == values["left"]["steps"] == 0
    assert values["files"]["state.json"] < 4096
    assert values["other_files"] == {"count": 1, "bytes": 65536}
    checkpoint = f"s3://bucket/runs/one/{checkpoints()[0]}"
    dealt = CliRunner().invoke(main, ["state", "reshard", checkpoint, "--world-size", "3"])
    assert dealt.exit_code == 0, dealt.output
    assert "nothing needs rewriting" in dealt.output
    assert CliRunner().invoke(main, ["verify", checkpoint]).exit_code == 0
