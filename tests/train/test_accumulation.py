"""Gradient accumulation under DDP and FSDP2: two real processes, gloo, against one process."""

import os
import socket

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils._python_dispatch import TorchDispatchMode

from raypack.actors.plan_block import RowMeta
from raypack.batching.options import TokenBatchOptions
from raypack.batching.step_planner import StepPlanner
from raypack.collate import PackedBatch
from raypack.collate.loss import next_token_loss_sum
from raypack.collate.transfer import DevicePrefetcher
from raypack.data.blocks import StreamRow
from raypack.train.deal import StepFacts
from raypack.train.rows import Rows, plan_of
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
    """One rank: a step of several micro-batches; writes gradients and the number of reductions."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    model, step = Model(), step_of(rank)
    if kind == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        reductions = []

        def counted(state, bucket):
            reductions.append(bucket.index())
            return allreduce_hook(state, bucket)

        wrapped.register_comm_hook(None, counted)
        micros = backward(wrapped, step)
        count = len(reductions)
        grads = {name: p.grad for name, p in model.named_parameters()}
    else:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model.inner)
        wrapped = fully_shard(model)
        with Operations() as operations:
            micros = backward(wrapped, step)
        count = sum("reduce_scatter" in name for name in operations.names)
        grads = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    torch.save({"grads": grads, "reductions": count, "micros": micros}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def backward(model, step):
    micros = 0
    for batch in step:
        with step.sync(model, batch):
            step.loss(model(batch), batch).backward()
        micros += 1
    step.commit()
    return micros


def gradients_of_one_process():
    model, plan = Model(), planned()
    for batch in plan.batches:
        packed = PackedBatch.from_flat(tokens_of(batch.indices), LENGTHS[batch.indices])
        (next_token_loss_sum(model(packed), packed.labels) / plan.supervised_tokens).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize(("kind", "groups"), [("ddp", 1), ("fsdp2", 2)])
def test_gradients_are_those_of_one_process_and_are_reduced_once_a_step(kind, groups, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train_rank, (port, kind, str(tmp_path)), nprocs=WORLD)
    expected = gradients_of_one_process()
    for rank in range(WORLD):
        result = torch.load(tmp_path / f"{rank}.pt")
        assert result["micros"] == 3  # 5 batches on 2 ranks: one of the six is empty
        assert result["reductions"] == groups
        assert result["grads"].keys() == expected.keys()
        for name, grad in expected.items():
            torch.testing.assert_close(result["grads"][name], grad, rtol=0, atol=1e-6)
