"""Runs on a mesh: FSDP2 over two data ranks and tensor parallelism inside each, resumed without it.

pytest -m slow tests/train/elastic/test_mesh_runs.py
"""

import json
import sys
from pathlib import Path

import pytest
import ray
import ray.train
import torch
from ray.train import Checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from raypack.audit import verify
from raypack.checkpoint.locate import last_checkpoint, open_path
from raypack.errors import LoaderError
from raypack.source import write_source
from raypack.train import get_evaluation, get_loader, report
from raypack.train.sharded import load_sharded, save_sharded
from tests.conftest import documents_table, long_tailed
from tests.support import train_functions
from tests.support.local_ray import local_ray
from tests.support.one_process import planner_of, rank_steps, train_all, train_step
from tests.support.running import BATCHES, CPUS, fit, recipe_of

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]

COUNT, DIES, STOP, SECOND_STOP = 400, 3, 6, 9


class Model(torch.nn.Module):
    """Two linear layers that tensor parallelism splits, in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(train_functions.VOCABULARY, 8, dtype=torch.float64)
        self.inner = torch.nn.Linear(8, 16, dtype=torch.float64)
        self.head = torch.nn.Linear(16, train_functions.VOCABULARY, dtype=torch.float64)

    def forward(self, batch):
        return self.head(torch.tanh(self.inner(self.tokens(batch.input_ids))))


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)


def train(config):
    """Train on a mesh of ``tp`` processes a data rank; write down what each process got."""
    world, rank = (getattr(ray.train.get_context(), f"get_world_{what}")() for what in ("size", "rank"))
    mesh = init_device_mesh("cpu", (world // config["tp"], config["tp"]), mesh_dim_names=("dp", "tp"))
    model = Model()
    parallelize_module(model, mesh["tp"], {"inner": ColwiseParallel(), "head": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = optimizer_of(model)

    def state_of():
        return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))

    if checkpoint := ray.train.get_checkpoint():
        state = state_of()
        load_sharded(checkpoint, state)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    scratch = Path(config["scratch"])
    if config["tp"] > 1:
        refused(
            lambda: get_loader(config["recipe"], mesh=mesh["dp"], data_dim="dp"), scratch / f"slice-{rank}"
        )
    with get_loader(config["recipe"], mesh=mesh, data_dim="dp") as loader:
        group, data_rank = loader.worker.group, loader.worker.data_rank
        with open(scratch / f"seen-{group}-{data_rank}-{rank}", "w") as seen:
            for step in loader:
                for batch in step:
                    with step.sync(model, batch):
                        step.loss(model(batch), batch).backward()
                    print(json.dumps([step.index, batch.indices.tolist()]), file=seen, flush=True)
                optimizer.step()
                optimizer.zero_grad()
                step.commit()
                if rank == 3 and step.index == DIES:
                    train_functions.die_once(str(scratch / "died"))
                if step.index % 2 or step.index == config["stop"] or loader.progress == 1.0:
                    report({"step": step.index}, loader, save=lambda folder: save_sharded(state_of(), folder))
                if step.index == config["stop"]:
                    mean = evaluated(model, get_evaluation(config["recipe"], mesh=mesh, data_dim="dp"))
                    (scratch / f"mean-{rank}").write_text(repr(mean))
                    return


def evaluated(model, evaluation):
    with torch.no_grad():
        return evaluation.mean(sum(evaluation.loss(model(batch), batch) for batch in evaluation))


def refused(action, file):
    try:
        action()
    except LoaderError as error:
        file.write_text(str(error))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("mesh")


@pytest.fixture(scope="module")
def source(place):
    return write_source(str(place / "source"), [documents_table(long_tailed(COUNT, seed=8), labels=True)])


@pytest.fixture(scope="module")
def cluster():
    with local_ray(train_functions, sys.modules[__name__], cpus=CPUS):
        yield


@pytest.fixture(scope="module")
def run(cluster, place, source):
    """Two data ranks of two processes, one of which is killed; then three data ranks of one."""
    recipe = recipe_of(source, backend="direct")
    fit(train, place, recipe, 4, name="mesh", failures=1, tp=2, stop=STOP)
    fit(train, place, recipe, 3, name="mesh", tp=1, stop=-1)
    return place / "storage/mesh"


@pytest.fixture(scope="module")
def shards(cluster, place, source):
    """The same under the rank deal, with a stretch on one data rank of two processes in between."""
    folder, recipe = place / "shards", recipe_of(source, deal="rank", backend="direct")
    folder.mkdir()
    fit(train, folder, recipe, 4, name="mesh", failures=1, tp=2, stop=STOP)
    fit(train, folder, recipe, 2, name="mesh", tp=2, stop=SECOND_STOP)
    fit(train, folder, recipe, 3, name="mesh", tp=1, stop=-1)
    return folder


def test_each_example_is_trained_and_counted_once_a_data_rank(run, place):
    assert (place / "died").exists()
    audit = verify(run)
    assert audit.ok, audit.findings
    assert [(e.complete, e.trained) for e in audit.epochs] == [(True, COUNT)]
    worlds = [a.world_size for a in audit.attempts]
    assert worlds[-2:] == [2, 3]
    assert set(worlds[:-1]) == {2}
    assert audit.attempts[-1].first_step == STOP + 1


def test_both_peers_of_a_data_rank_got_the_same_batches_in_the_same_order(run, place):
    assert check_peers(place) == {2, 3}


def check_peers(folder):
    """Hold what the peers of each data rank got against each other; return the numbers of data ranks."""
    attempts, sizes = {}, set()
    for file in folder.glob("seen-*"):
        _, group, data_rank, rank = file.name.split("-")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        attempts.setdefault(group, {}).setdefault(int(data_rank), {})[int(rank)] = lines
    for data_ranks in attempts.values():
        sizes.add(len(data_ranks))
        shared = len(data_ranks) < 3
        assert {d: sorted(peers) for d, peers in data_ranks.items()} == (
            {d: [2 * d, 2 * d + 1] for d in data_ranks} if shared else {0: [0], 1: [1], 2: [2]}
        )
        if shared:
            for first, second in (peers.values() for peers in data_ranks.values()):
                common = min(len(first), len(second))  # the attempt that was killed ends anywhere
                assert common >= DIES * BATCHES // 2
                assert first[:common] == second[:common]
    return sizes


def test_a_slice_of_the_mesh_is_refused_on_every_process_with_the_remedy(run, place):
    for rank in range(4):
        assert "mesh must hold all 4 processes of the run" in (place / f"slice-{rank}").read_text()


def test_its_parameters_and_its_evaluation_are_those_of_one_process(run, source, place):
    model = Model()
    optimizer = optimizer_of(model)
    for index in train_all(model, optimizer, source, planner_of(source)):
        if index == STOP:
            expected = evaluated(model, get_evaluation(recipe_of(source), rank=0, world_size=1))
    assert index > STOP + 2
    for rank in range(4):
        assert float((place / f"mean-{rank}").read_text()) == pytest.approx(expected, abs=1e-9)
    check_parameters(run, model)


def check_parameters(run, model):
    state = {"model": Model().state_dict()}
    filesystem, path = open_path(run)
    load_sharded(Checkpoint(last_checkpoint(filesystem, path), filesystem), state)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state["model"][name], value, rtol=0, atol=1e-6)


# -- the rank deal -----------------------------------------------------------------------------------


def test_under_the_rank_deal_each_example_is_trained_and_counted_once_a_data_rank(shards):
    assert (shards / "died").exists()
    assert check_peers(shards) == {2, 1, 3}
    audit = verify(shards / "storage/mesh")
    assert audit.ok, audit.findings
    assert [(e.complete, e.trained) for e in audit.epochs] == [(True, COUNT)]
    worlds = [a.world_size for a in audit.attempts]
    assert worlds[-3:] == [2, 1, 3]
    assert set(worlds[:-2]) == {2}
    assert [a.first_step for a in audit.attempts[-2:]] == [STOP + 1, SECOND_STOP + 1]


def test_under_the_rank_deal_a_checkpoint_holds_one_record_a_data_rank(shards):
    checkpoints = [*(shards / "storage/mesh").glob("step_*")]
    for checkpoint in checkpoints:
        world = int(checkpoint.name.split("_w")[1].split("_")[0])
        files = sorted(file.name for file in checkpoint.glob("raypack/rank_*"))
        assert files == [f"rank_{data_rank:05d}.json" for data_rank in range(world)]
    assert len(checkpoints) >= 5


def test_under_the_rank_deal_its_parameters_are_those_of_one_process(shards, source):
    recipe, model, means = recipe_of(source, deal="rank"), Model(), {}
    optimizer, attempts = optimizer_of(model), verify(shards / "storage/mesh").attempts
    for index, plans in enumerate(rank_steps(source, recipe, attempts)):
        train_step(model, optimizer, source, plans)
        if index in (STOP, SECOND_STOP):
            means[index] = evaluated(model, get_evaluation(recipe, rank=0, world_size=1))
    for rank, step in enumerate((SECOND_STOP, SECOND_STOP, STOP, STOP)):
        assert float((shards / f"mean-{rank}").read_text()) == pytest.approx(means[step], abs=1e-9)
    check_parameters(shards / "storage/mesh", model)
