"""A run whose storage fails: retried or named on every rank, and gone on with from the checkpoint before.

pytest -m slow tests/train/reporting/test_storage_runs.py
"""

import errno
import json
import os

import pytest

from raypack.audit import verify
from raypack.checkpoint.locate import last_checkpoint, open_path
from raypack.source import write_source
from tests.conftest import documents_table, long_tailed
from tests.support import failing_storage, running, storage_functions
from tests.support.failing_storage import order
from tests.support.local_ray import local_ray

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_ray(storage_functions, failing_storage, cpus=running.CPUS):
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("storage-runs")
    (place / "tmp").mkdir()
    return place


def fit(place, recipe, workers, name="one", **config):
    run = {"storage_filesystem": failing_storage.failing_storage(place / "orders")}
    env = {"TMPDIR": str(place / "tmp"), "RAYPACK_STRICT": "0"}  # uploads are tried again
    config["orders"] = str(place / "orders")
    return running.fit(
        storage_functions.train, place, recipe, workers, name=name, run=run, env=env, expected=None, **config
    )


@pytest.fixture(scope="module")
def failed(place):
    """The first upload is throttled twice; every one of rank 1's file after it finds the disk full."""
    source = write_source(str(place / "source"), [documents_table(long_tailed(601, seed=6))])
    recipe = running.recipe_of(source, deal="rank", backend="direct")
    failing_storage.failing_storage(place / "orders")
    order(place / "orders", "model.pt", 0, times=2)
    order(place / "orders", "rank_00001.json", errno.ENOSPC, after=1)
    with pytest.raises(Exception) as caught:
        fit(place, recipe, 2)
    return recipe, str(caught.value), verify(place / "storage/one"), os.listdir(place / "tmp")


def test_a_full_disk_is_named_with_its_file_and_remedy_on_every_rank(failed, place):
    _, message, _, _ = failed
    assert "cannot be written" in message
    own, other = ((place / f"raised-{rank}").read_text() for rank in (1, 0))
    assert own.startswith("CheckpointError: ")
    assert "raypack/rank_00001.json cannot be written (OSError: [Errno 28] No space left on device" in own
    assert "free space in the storage_path of the run" in own
    assert other.startswith("LoaderError: rank 1 failed in this report")
    assert "rank_00001.json cannot be written" in other


def test_the_checkpoint_before_stays_the_last_one_and_no_local_file_is_left(failed):
    _, _, audit, temporary = failed
    assert audit.consistent, audit.findings
    assert not audit.ok
    assert sum(a.steps for a in audit.attempts) == 4
    assert [name for name in temporary if name.startswith("raypack")] == []


def test_the_run_goes_on_under_its_name_and_reads_the_state_alone_of_the_checkpoint(failed, place):
    recipe = failed[0]
    last = last_checkpoint(*open_path(place / "storage/one"))
    for name in ("rank_00001.json", "opened"):
        (place / "orders" / name).unlink(missing_ok=True)
    result = fit(place, recipe, 3)
    assert result.metrics["done"]
    audit = verify(place / "storage/one")
    assert audit.ok, audit.findings
    assert [(a.world_size, a.first_step) for a in audit.attempts] == [(2, 0), (3, 4)]
    assert audit.epochs[0].complete
    paths = json.loads((place / "opened-by-get-loader").read_text())
    read = sorted(path for path in paths if path.startswith(last))
    files = ("manifest.json", "rank_00000.json", "rank_00001.json", "state.json")
    assert read == [f"{last}/raypack/{name}" for name in files]
    assert not any(path.endswith("model.pt") for path in paths)


def test_an_upload_behind_the_training_that_fails_ends_the_run_with_its_name(failed, place):
    recipe = failed[0]
    order(place / "orders", "model.pt", errno.EACCES, after=1)
    message = r"CheckpointError.*model\.pt cannot be written .*get permission to write in the storage_path"
    with pytest.raises(Exception, match=message):
        fit(place, recipe, 1, name="behind", upload="async")
    audit = verify(place / "storage/behind")
    assert audit.consistent, audit.findings
    assert sum(a.steps for a in audit.attempts) == 4
    assert [name for name in os.listdir(place / "tmp") if name.startswith("raypack")] == []
