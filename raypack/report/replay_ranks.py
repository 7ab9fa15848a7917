"""Train a run of the rank deal again, in mind alone: every attempt's shards, resharded as the run was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from raypack.actors.rank_steps import commit_examples
from raypack.batching.consolidated import ConsolidatedTokenBatchState
from raypack.batching.lengths import LengthTable
from raypack.batching.sampler import StatefulTokenBatchSampler
from raypack.report.replay import Replay
from raypack.sampling.receipt import receipt_key
from raypack.sampling.sampler import StatefulShardSampler
from raypack.train.ledger import Attempt
from raypack.train.rank_plan import RankPlan

_STEPS_AT_ONCE = 64


@dataclass(slots=True)
class RankReplay:
    """What the attempts of a run must have trained, epoch by epoch, and what they left."""

    epochs: list[Replay]
    remaining: ConsolidatedTokenBatchState
    """What is left of the last epoch."""


def replay_ranks(plan: RankPlan, lengths: LengthTable, attempts: Sequence[Attempt]) -> RankReplay:
    """Plan the steps of all attempts, one after another.

    Args:
        plan: The plan that the checkpoint holds; the order is taken from it.
        lengths: The source's table.
        attempts: The ledger's attempts.
    """
    epochs = [Replay.of(len(lengths))]
    remaining: ConsolidatedTokenBatchState | None = None
    for attempt in attempts:
        samplers = [*_samplers(plan, lengths, remaining, attempt)]
        micros = -(-attempt.batches_per_step // attempt.world_size)
        left = attempt.steps
        while left:
            done = _train(samplers, micros, left, plan.source_id, epochs[-1])
            left -= done
            if not done:
                if len(epochs) - 1 == plan.epoch:
                    break
                epochs.append(Replay.of(len(lengths)))
                for sampler in samplers:
                    sampler.start_epoch(len(epochs) - 1)
        remaining = ConsolidatedTokenBatchState.consolidate(s.state() for s in samplers)
    if remaining is None:
        return RankReplay(epochs, plan.consolidated)
    return RankReplay(epochs, replace(remaining, options=plan.options))


def _samplers(
    plan: RankPlan, lengths: LengthTable, remaining: ConsolidatedTokenBatchState | None, attempt: Attempt
) -> Iterator[StatefulTokenBatchSampler]:
    for rank in range(attempt.world_size):
        if remaining is not None:
            under = replace(remaining, options=attempt.options)
            yield StatefulTokenBatchSampler.reshard(under, rank, attempt.world_size, lengths)
            continue
        shard = StatefulShardSampler(
            plan.source_id,
            len(lengths),
            rank=rank,
            world_size=attempt.world_size,
            seed=plan.seed,
            shuffle=plan.shuffle,
        )
        yield StatefulTokenBatchSampler(shard, lengths, attempt.options)


def _train(
    samplers: list[StatefulTokenBatchSampler], micros: int, most: int, source_id: str, replay: Replay
) -> int:
    """Train up to ``most`` steps of the present epoch on all ranks; return how many there were."""
    count = min(most, _STEPS_AT_ONCE)
    longest = 0
    key = receipt_key(source_id, samplers[0].sampler.epoch)
    for sampler in samplers:
        plans = sampler.plans(0, count * micros)
        for k, plan in enumerate(plans):
            replay.add(key, replay.steps + k // micros, plan, sampler.options.maximum_tokens)
        commit_examples(sampler, sum(len(plan) for plan in plans))
        longest = max(longest, -(-len(plans) // micros))
    replay.steps += longest
    return longest
