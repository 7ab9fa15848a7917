"""A mesh of four real processes over gloo, without Ray: what they add up counts each data rank once."""

import multiprocessing
import os
import socket
from functools import partial
from types import SimpleNamespace

import pytest
import ray.train
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

from raypack.actors.planner import NodePlanner
from raypack.collate import PackedBatch
from raypack.collate.loss import next_token_loss_sum
from raypack.source import open_source, write_source
from raypack.train import PackedData, get_evaluation
from raypack.train.elastic.data_ranks import data_ranks_of
from raypack.train.elastic.deal_starts import rank_sampler, rank_start
from tests.conftest import documents_table, long_tailed
from tests.support.local_run import LocalActor, closed, loader_of, patch, worker_of

PROCESSES, DATA_RANKS, BATCHES, VOCABULARY = 4, 2, 5, 97


def recipe_of(path):
    return PackedData(
        source=path, maximum_tokens=64, deal="rank", batches_per_step=BATCHES, backend="direct", seed=2
    )


def model_of():
    torch.manual_seed(0)
    layers = torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY)
    return torch.nn.Sequential(*layers).double()


def process(rank, port, folder, path):
    """One process of the mesh: trains an epoch under the rank deal, then evaluates what it has."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    torch.set_num_threads(1)
    context = SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: PROCESSES)
    mesh = init_device_mesh("cpu", (DATA_RANKS, PROCESSES // DATA_RANKS), mesh_dim_names=("dp", "tp"))
    model = model_of()
    with pytest.MonkeyPatch.context() as monkeypatch:
        patch(monkeypatch)
        monkeypatch.setattr(ray.train, "get_context", lambda: context)
        counts, record = train(torch.nn.parallel.DistributedDataParallel(model), rank, mesh, path)
        evaluation = get_evaluation(recipe_of(path), mesh=mesh, data_dim="dp", device="cpu")
        mean = evaluated(model, evaluation)
    result = {"counts": counts, "record": record, "mean": mean, "model": model.state_dict()}
    torch.save(result, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def train(model, rank, mesh, path):
    """Return what each step says that it holds over all ranks, and the record of this process."""
    recipe, source = recipe_of(path), open_source(path)
    place = worker_of(rank, PROCESSES, data_ranks_of(mesh, "dp", PROCESSES))
    began = rank_start(recipe, source, place, None, torch.device("cpu"))
    actor = LocalActor(partial(NodePlanner, began[1]))
    loader = loader_of(recipe, source, place, began, actor)
    optimizer, counts = torch.optim.SGD(model.parameters(), lr=0.05), []
    for step in loader:
        for batch in step:
            with step.sync(model, batch):
                step.loss(model(batch.input_ids), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        counts.append((step.batches, step.real_tokens, step.supervised_tokens))
        step.commit()
    record = loader.own_record()
    closed(loader)
    actor.stop()
    return counts, record


def evaluated(model, evaluation):
    with torch.no_grad():
        return evaluation.mean(sum(evaluation.loss(model(batch.input_ids), batch) for batch in evaluation))


def train_alone(source):
    """The same steps in one process: those of two samplers without peers."""
    samplers = [rank_sampler(recipe_of(source.path), source, None, r, DATA_RANKS) for r in range(DATA_RANKS)]
    model, counts, micros = model_of(), [], -(-BATCHES // DATA_RANKS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    plans = [sampler.plans(0, 10**6) for sampler in samplers]
    for first in range(0, max(map(len, plans)), micros):
        step = [plan for one in plans for plan in one[first : first + micros]]
        supervised = sum(int(source.supervised[plan.indices].sum()) for plan in step)
        counts.append((len(step), sum(plan.real_tokens for plan in step), supervised))
        for plan in step:
            ids, lengths, labels = source.take_flat(plan.indices)
            batch = PackedBatch.from_flat(ids, lengths, labels=labels)
            (next_token_loss_sum(model(batch.input_ids), batch.labels) / supervised).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, counts


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source")
    return write_source(str(path / "source"), [documents_table(long_tailed(150, seed=2), labels=True)])


@pytest.fixture(scope="module")
def results(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mesh")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.set_forkserver_preload([__name__])  # torch is imported once for all four
    mp.start_processes(process, (port, str(folder), source.path), nprocs=PROCESSES, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


@pytest.fixture(scope="module")
def alone(source):
    return train_alone(source)


def test_a_step_of_the_rank_deal_counts_each_data_rank_once(results, alone):
    _, counts = alone
    assert len(counts) > 5
    assert [result["counts"] for result in results] == [counts] * PROCESSES


def test_its_gradients_are_those_of_one_process(results, alone):
    for result in results:
        for name, value in alone[0].state_dict().items():
            torch.testing.assert_close(result["model"][name], value, rtol=0, atol=1e-9)


def test_peers_end_in_one_state(results):
    records = [result["record"] for result in results]
    assert (records[0], records[2]) == (records[1], records[3])
    assert [record["sampler"]["rank"] for record in records] == [0, 0, 1, 1]


def test_the_mean_of_an_evaluation_counts_each_data_rank_once(results, alone, source):
    one = get_evaluation(recipe_of(source.path), rank=0, world_size=1)
    expected = evaluated(alone[0], one)
    assert [result["mean"] for result in results] == pytest.approx([expected] * PROCESSES, abs=1e-9)
