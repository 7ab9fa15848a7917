"""The rank deal on a real Ray: a sampler and planner a rank, killed and resharded, proven by the audit."""

import json

import pytest

from raypack.audit import verify
from raypack.checkpoint.locate import last_checkpoint, open_path
from raypack.source import write_source
from tests.conftest import documents_table, long_tailed
from tests.support import train_functions
from tests.support.local_ray import local_ray
from tests.support.running import CPUS, fit, recipe_of

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_ray(train_functions, cpus=CPUS):
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("rank-runs")


@pytest.fixture(scope="module")
def chain(place):
    """Two epochs on 2 -> 3 -> 1 -> 5 workers; a worker and a planner that owes a grant are killed."""
    source = write_source(str(place / "source"), [documents_table(long_tailed(901, seed=6), labels=True)])
    recipe = recipe_of(source, deal="rank", epochs=2, ahead=8)
    fit(
        train_functions.train,
        place,
        recipe,
        2,
        name="chain",
        failures=2,
        kill_planner_after=2,
        die_after=5,
        stop_after=11,
    )
    fit(train_functions.train, place, recipe, 3, name="chain", stop_after=23)
    fit(train_functions.train, place, recipe, 1, name="chain", stop_after=35)
    return fit(train_functions.train, place, recipe, 5, name="chain")


def test_a_run_of_shards_that_was_killed_and_resharded_trains_each_example_once_an_epoch(chain, place):
    assert (place / "died-between-steps").exists()
    audit = verify(place / "storage/chain")
    assert audit.ok, audit.findings
    assert [(e.complete, e.trained) for e in audit.epochs] == [(True, 901)] * 2
    worlds = [a.world_size for a in audit.attempts]
    assert worlds[-3:] == [3, 1, 5]
    assert worlds[:-3] in ([2, 2], [2])  # an attempt whose report came too late leaves no trace


def test_each_rank_has_its_own_small_file_in_the_checkpoint(chain, place):
    filesystem, path = open_path(place / "storage/chain")
    folder = last_checkpoint(filesystem, path) + "/raypack"
    for rank in range(5):
        with open(f"{folder}/rank_{rank:05d}.json") as file:
            record = json.load(file)
        assert (record["rank"], record["world_size"]) == (rank, 5)
        assert len(json.dumps(record)) < 4096


def test_a_missing_rank_file_ends_the_next_start_with_its_name(chain, place):
    filesystem, path = open_path(place / "storage/chain")
    folder = last_checkpoint(filesystem, path) + "/raypack"
    filesystem.delete_file(f"{folder}/rank_00003.json")
    assert "rank_00003.json is missing" in verify(place / "storage/chain").findings[0]
