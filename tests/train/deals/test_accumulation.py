"""Gradient accumulation under DDP and FSDP2: two real processes, gloo, against one process."""

import multiprocessing
import os
import socket
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils._python_dispatch import TorchDispatchMode

from raypack.batching.options import TokenBatchOptions
from raypack.batching.sequence.plan_block import RowMeta
from raypack.batching.steps.planner import StepPlanner
from raypack.collate import PackedBatch
from raypack.collate.loss import next_token_loss_sum
from raypack.collate.transfer import DevicePrefetcher
from raypack.data.stream.blocks import StreamRow
from raypack.errors import LoaderError
from raypack.train.deals.deal import StepFacts
from raypack.train.deals.rows import Rows, plan_of
from raypack.train.step import Step

WORLD, BUDGET, BATCHES, VOCABULARY = 2, 32, 5, 11
LENGTHS = np.array([7, 20, 3, 11, 30, 2, 9, 16, 5, 28, 13, 1, 24, 6, 10], np.int32)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(VOCABULARY, 8)
        self.inner = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, VOCABULARY)

    def forward(self, batch):
        return self.head(torch.tanh(self.inner(self.tokens(batch.input_ids))))


def planned():
    planner = StepPlanner(
        "s", LENGTHS, TokenBatchOptions(BUDGET), batches_per_step=BATCHES, seed=1, packing="greedy"
    )
    return planner.steps(0, 1)[0]


def tokens_of(indices):
    return np.concatenate([*(np.arange(LENGTHS[i]) * (i + 3) % VOCABULARY for i in indices), []]).astype(
        np.int32
    )


def to_batch(row):
    return PackedBatch.from_flat(row.input_ids, row.lengths, indices=row.indices, plan=plan_of(row))


def step_of(rank):
    """This rank's part of the plan as a step of the train loop."""
    plan, rows = planned(), []
    ranks = plan.deal(WORLD)
    for micro, batch in enumerate(ranks[rank]):
        meta = RowMeta(
            epoch=0,
            step=0,
            micro=micro,
            micros=len(ranks[rank]),
            step_batches=BATCHES,
            step_supervised=plan.supervised_tokens,
            step_tokens=plan.real_tokens,
            step_imbalance=1_000_000,
            real_tokens=batch.real_tokens,
            maximum_length=batch.maximum_sequence_length,
            token_slots=batch.token_slots,
            end_position=0,
            end_batches=0,
        )
        rows.append(
            StreamRow(micro, meta, batch.indices, LENGTHS[batch.indices], tokens_of(batch.indices), None)
        )
    facts = StepFacts(
        epoch=0,
        step=0,
        micros=len(rows),
        rows=len(rows),
        batches=BATCHES,
        tokens=plan.real_tokens,
        supervised=plan.supervised_tokens,
        end=plan.end,
    )
    return Step(
        index=0,
        world_size=WORLD,
        facts=facts,
        rows=Rows(iter(rows)),
        batches=DevicePrefetcher(to_batch, None),
        on_commit=lambda step: None,
    )


class Operations(TorchDispatchMode):
    """Keeps the names of all operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.append(str(operation))
        return operation(*args, **(kwargs or {}))


def train_rank(rank, port, kind, folder):
    """One rank: a step in each kind of loop; writes gradients and the number of reductions of each."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    torch.set_num_threads(1)
    train = train_ddp if kind == "ddp" else train_fsdp2
    results = {loop.__name__: train(partial(loop, rank=rank), step_of(rank)) for loop in LOOPS}
    try:
        train(without_empty_batches, step_of(rank))
    except (LoaderError, RuntimeError) as error:  # the other rank's group is closed under it
        results["error"] = f"{type(error).__name__}: {error}"
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def train_ddp(loop, step):
    model, reductions = Model(), []
    wrapped = torch.nn.parallel.DistributedDataParallel(model)

    def counted(state, bucket):
        reductions.append(bucket.index())
        return allreduce_hook(state, bucket)

    wrapped.register_comm_hook(None, counted)
    loop(wrapped, step)
    grads = {name: p.grad for name, p in model.named_parameters()}
    return {"grads": grads, "reductions": len(reductions), "micros": step.micro_batches}


def train_fsdp2(loop, step):
    from torch.distributed.fsdp import fully_shard

    model = Model()
    fully_shard(model.inner)
    wrapped = fully_shard(model)
    with Operations() as operations:
        loop(wrapped, step)
    count = sum("reduce_scatter" in name for name in operations.names)
    grads = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    return {"grads": grads, "reductions": count, "micros": step.micro_batches}


def backward(model, step, batch):
    with step.sync(model, batch):
        step.loss(model(batch), batch).backward()


def in_order(model, step, rank):
    for batch in step:
        backward(model, step, batch)
    step.commit()


def each_rank_in_an_order_of_its_own(model, step, rank):
    batches = list(step)
    for batch in batches if rank else reversed(batches):
        backward(model, step, batch)
    step.commit()


def each_batch_twice(model, step, rank):
    for batch in step:
        backward(model, step, batch)
        backward(model, step, batch)
    step.commit()


LOOPS = {in_order: (1, 1), each_rank_in_an_order_of_its_own: (1, 1), each_batch_twice: (2, 2)}
"""How often each counts a gradient, and how often it reduces them."""


def without_empty_batches(model, step):
    for batch in step:
        if batch.num_documents:
            backward(model, step, batch)
    step.commit()


def gradients_of_one_process():
    model, plan = Model(), planned()
    for batch in plan.batches:
        packed = PackedBatch.from_flat(tokens_of(batch.indices), LENGTHS[batch.indices])
        (next_token_loss_sum(model(packed), packed.labels) / plan.supervised_tokens).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.fixture(scope="module", params=[("ddp", 1), ("fsdp2", 2)], ids=lambda param: param[0])
def results(request, tmp_path_factory):
    """What each rank wrote, and in how many parts a reduction is made."""
    kind, groups = request.param
    folder = tmp_path_factory.mktemp(kind)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.set_forkserver_preload([__name__])  # torch is imported once for both
    mp.start_processes(train_rank, (port, kind, str(folder)), nprocs=WORLD, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)], groups


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_gradients_are_those_of_one_process_and_are_reduced_once_a_step(results, loop):
    ranks, groups = results
    expected, (times, reductions) = gradients_of_one_process(), LOOPS[loop]
    for rank in ranks:
        result = rank[loop.__name__]
        assert result["micros"] == 3  # 5 batches on 2 ranks: one of the six is empty
        assert result["reductions"] == reductions * groups
        assert result["grads"].keys() == expected.keys()
        for name, grad in expected.items():
            torch.testing.assert_close(result["grads"][name], times * grad, rtol=0, atol=1e-6)


def test_a_rank_that_leaves_out_its_empty_batch_is_told_and_its_peer_does_not_wait_without_end(results):
    (full, lacking), _ = results
    assert lacking["error"].startswith("LoaderError: step 0: micro-batch 2 of 3 was not passed to step.sync")
    assert full["error"].startswith("RuntimeError")
