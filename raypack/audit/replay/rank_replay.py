"""Replays a run of the rank deal without training: every attempt's shards, resharded as the run was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from raypack.audit.replay.global_replay import Replay, at_once
from raypack.audit.replay.stretches import Stretch
from raypack.batching.lengths import LengthTable
from raypack.batching.rank.consolidated import ConsolidatedTokenBatchState
from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.batching.sequence.rank_steps import commit_examples
from raypack.checkpoint.ledger import Attempt
from raypack.checkpoint.rank_plan import RankPlan
from raypack.sampling.sampler import StatefulShardSampler

Samplers = Iterable[StatefulTokenBatchSampler]


def replay_ranks(
    plan: RankPlan, lengths: LengthTable, epoch: int, stretches: Iterable[Stretch], replay: Replay
) -> ConsolidatedTokenBatchState:
    """Plan the steps of an epoch on all ranks, one attempt after another.

    Args:
        plan: The plan that the checkpoint holds; the order is taken from it.
        lengths: The source's table.
        epoch: The epoch.
        stretches: Its steps, by attempt; one or more.
        replay: Where they are added; it ends early where the plan does.

    Returns:
        What they leave of the epoch.
    """
    remaining: ConsolidatedTokenBatchState | None = None
    for stretch in stretches:
        attempt = stretch.attempt
        if remaining is None:
            samplers: Samplers = begun(plan, lengths, epoch, attempt)
        else:
            samplers = _resharded(replace(remaining, options=attempt.options), lengths, attempt)
        micros = -(-attempt.batches_per_step // attempt.world_size)
        states, longest = [], 0
        for sampler in samplers:
            batches = _train(sampler, stretch.steps * micros, micros, replay)
            longest = max(longest, -(-batches // micros))
            states.append(sampler.state())
        replay.steps += longest
        remaining = ConsolidatedTokenBatchState.consolidate(states)
    assert remaining is not None
    return remaining


def begun(
    plan: RankPlan, lengths: LengthTable, epoch: int, attempt: Attempt
) -> Iterator[StatefulTokenBatchSampler]:
    """Give the samplers of all ranks at the start of an epoch."""
    for rank in range(attempt.world_size):
        shard = StatefulShardSampler(
            plan.source_id,
            len(lengths),
            rank=rank,
            world_size=attempt.world_size,
            seed=plan.seed,
            epoch=epoch,
            shuffle=plan.shuffle,
        )
        yield StatefulTokenBatchSampler(shard, lengths, attempt.options)


def _resharded(
    remaining: ConsolidatedTokenBatchState, lengths: LengthTable, attempt: Attempt
) -> Iterator[StatefulTokenBatchSampler]:
    for rank in range(attempt.world_size):
        yield StatefulTokenBatchSampler.reshard(remaining, rank, attempt.world_size, lengths)


def _train(sampler: StatefulTokenBatchSampler, most: int, micros: int, replay: Replay) -> int:
    """Train up to ``most`` batches of a rank; return how many there were."""
    size, done = at_once(sampler.options, sampler.lengths), 0
    while plans := sampler.plans(0, min(size, most - done)):
        steps = replay.steps + np.arange(done, done + len(plans)) // micros
        replay.add(plans, steps, sampler.options.maximum_tokens)
        commit_examples(sampler, sum(len(plan) for plan in plans))
        done += len(plans)
    return done
