"""What a chaotic run must have trained, by one process: the plan of its ledger, without any disturbance."""

import numpy as np
import torch

from raypack.batching.consolidated import ConsolidatedTokenBatchState
from raypack.batching.sampler import StatefulTokenBatchSampler
from raypack.batching.step_planner import StepPlanner
from raypack.sampling.sampler import StatefulShardSampler
from tests.train.functions import TinyTransformer
from tests.train.one_process import train_step


def trained_by_one(source, plan, recipe, attempts):
    """Return the parameters after all steps, each step's batches in one process."""
    model = TinyTransformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps = _global(source, recipe) if plan["deal"] == "global" else _ranks(source, recipe, attempts)
    for plans in steps:
        train_step(model, optimizer, source, plans)
    return model.state_dict()


def _global(source, recipe):
    """The steps of both epochs: the same whatever happened."""
    for epoch in range(recipe.epochs):
        planner = StepPlanner(
            source.fingerprint,
            source.lengths,
            recipe.options,
            batches_per_step=recipe.batches_per_step,
            seed=recipe.seed,
            epoch=epoch,
        )
        for step in planner.steps(0, 10**6):
            yield step.batches


def _ranks(source, recipe, attempts):
    """The steps of the worlds that the ledger tells, resharded between them."""
    remaining, epoch = None, 0
    for attempt in attempts:
        world, micros = attempt.world_size, -(-recipe.batches_per_step // attempt.world_size)
        if remaining is None:
            samplers = [
                StatefulTokenBatchSampler(
                    StatefulShardSampler(
                        source.fingerprint, len(source), rank=rank, world_size=world, seed=recipe.seed
                    ),
                    source.lengths,
                    recipe.options,
                )
                for rank in range(world)
            ]
        else:
            samplers = [
                StatefulTokenBatchSampler.reshard(remaining, rank, world, source.lengths)
                for rank in range(world)
            ]
        left = attempt.steps
        while left:
            ranks = [sampler.plans(0, micros) for sampler in samplers]
            plans = [plan for plans in ranks for plan in plans]
            if not plans:
                epoch += 1
                for sampler in samplers:
                    sampler.start_epoch(epoch)
                continue
            for sampler, mine in zip(samplers, ranks, strict=True):
                examples = int(np.sum([len(plan) for plan in mine], dtype=np.int64))
                if examples:
                    sampler.sampler.next_indices(examples)
                    sampler.commit(examples)
            left -= 1
            yield plans
        remaining = ConsolidatedTokenBatchState.consolidate(s.state() for s in samplers)
