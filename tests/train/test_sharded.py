"""Sharded checkpoints in a report: FSDP2 resumed on other numbers of workers, against one process."""

import sys
from pathlib import Path

import pyarrow.fs as pafs
import pytest
import torch
from ray.train import Checkpoint

from raypack.audit import verify
from raypack.checkpoint.locate import last_checkpoint, open_path
from raypack.errors import CheckpointError
from raypack.source import write_source
from raypack.train.sharded import INDEX, load_sharded, save_sharded
from tests.conftest import documents_table, long_tailed
from tests.support.local_ray import local_ray
from tests.support.one_process import planner_of, train_all
from tests.support.running import CPUS, fit, recipe_of

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import fsdp2

sys.path.pop(0)

STOP = 2

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # a single process, as meant


def state_of(values):
    return {"weights": {"a": torch.tensor(values), "b": torch.ones(3)}, "steps": 0}


def remote_copy(directory):
    """A checkpoint in a filesystem that is none of the machine's own."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(directory) + "/", "/copy", recursive=True)
    return Checkpoint("copy", filesystem=pafs.PyFileSystem(pafs.FSSpecHandler(memory)))


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_a_state_comes_back_from_the_checkpoints_own_filesystem(tmp_path, remote):
    save_sharded({**state_of([1.5, 2.5]), "steps": 7}, tmp_path)
    checkpoint = remote_copy(tmp_path) if remote else Checkpoint.from_directory(str(tmp_path))
    state = state_of([0.0, 0.0])
    kept = state["weights"]["a"]
    load_sharded(checkpoint, state)
    assert state["weights"]["a"] is kept
    assert kept.tolist() == [1.5, 2.5]
    assert state["steps"] == 7


def test_a_checkpoint_without_the_folder_is_refused_with_the_remedy(tmp_path):
    save_sharded(state_of([1.0]), tmp_path, name="teacher")
    with pytest.raises(CheckpointError, match=r"model/.metadata is missing: .*save_sharded.*name='model'"):
        load_sharded(Checkpoint.from_directory(str(tmp_path)), state_of([0.0]))


@pytest.mark.parametrize("name", ["raypack", "a/b", ""])
def test_a_name_that_is_no_folder_of_its_own_is_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="name must be"):
        save_sharded(state_of([1.0]), tmp_path, name=name)


# -- a run of the example: FSDP2 on 3 workers, then on 2 -------------------------------------------


def train(config):
    """The example's train function in float64, so that the order of sums leaves no trace."""
    torch.set_default_dtype(torch.float64)
    fsdp2.train(config)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fsdp2")


@pytest.fixture(scope="module")
def source(place):
    lengths = long_tailed(220, seed=7)
    return write_source(str(place / "source"), [documents_table(lengths, labels=True)])


@pytest.fixture(scope="module")
def resized(place, source):
    """A run in an attempt of 3 workers and one of 2; its storage."""
    recipe = recipe_of(source, backend="direct")
    with local_ray(fsdp2, sys.modules[__name__], cpus=CPUS):
        fit(train, place, recipe, 3, name="fsdp2", stop_at=STOP)
        fit(train, place, recipe, 2, name="fsdp2", stop_at=-1)
    return place / "storage/fsdp2"


@pytest.mark.ray
@pytest.mark.slow
def test_a_sharded_run_that_was_resized_is_proven(resized):
    audit = verify(resized)
    assert audit.ok, audit.findings
    assert [(e.complete, e.trained) for e in audit.epochs] == [(True, 220)]
    assert [(a.world_size, a.first_step) for a in audit.attempts] == [(3, 0), (2, STOP + 1)]


@pytest.mark.ray
@pytest.mark.slow
def test_each_rank_saved_its_own_shards_and_the_first_their_index(resized):
    filesystem, path = open_path(resized)
    files = {f.name for f in (Path(last_checkpoint(filesystem, path)) / "model").iterdir()}
    assert files == {INDEX, "__0_0.distcp", "__1_0.distcp"}


@pytest.mark.ray
@pytest.mark.slow
def test_its_parameters_are_those_of_one_process(resized, source):
    torch.set_default_dtype(torch.float64)
    try:
        expected = trained_by_one_process(source)
        state = {"model": fsdp2.LanguageModel().state_dict()}
        filesystem, path = open_path(resized)
        load_sharded(Checkpoint(last_checkpoint(filesystem, path), filesystem), state)
    finally:
        torch.set_default_dtype(torch.float32)
    assert expected.keys() == state["model"].keys()
    for name, value in expected.items():
        torch.testing.assert_close(state["model"][name], value, rtol=0, atol=1e-6)


def trained_by_one_process(source):
    """Return the parameters after the same steps with nothing sharded."""
    torch.manual_seed(0)
    model = fsdp2.LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = list(train_all(model, optimizer, source, planner_of(source)))
    assert steps[-1] > STOP + 2
    return model.state_dict()
