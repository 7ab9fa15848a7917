"""What is left of a checkpoint's current epoch."""

from __future__ import annotations

from dataclasses import dataclass

from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.state import StepPlannerState
from raypack.checkpoint.rank_plan import RankPlan
from raypack.checkpoint.run_state import RunState
from raypack.source import ArrowSource

MOST_PLANNED = 2_000_000
"""Examples that are planned for the sake of a count, at the most: about two seconds."""
_STEPS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What of an epoch is not committed."""

    examples: int
    tokens: int
    batches: int | None = None
    """None where the source is not readable, or too much is left to plan it all."""
    steps: int | None = None
    """Optimizer steps, under the rank deal those of the checkpoint's number of data ranks."""


def remaining_of(state: RunState, source: ArrowSource | None) -> Remaining:
    """Count what is left of the epoch, by its plan where the source is readable and little is left.

    Args:
        state: The state.
        source: Its source, or None.
    """
    counted = _by_records(state)
    if source is None or max(counted.examples, _by_plan(state.plan)) > MOST_PLANNED:
        return counted
    if isinstance(state.plan, RankPlan):
        return _of_ranks(state.plan, source, state.world_size, counted)
    return _of_steps(state.plan, source)


def _by_plan(plan: StepPlannerState | RankPlan) -> int:
    """Return how many examples the plan itself has left at the least, whatever the ledger says."""
    if isinstance(plan, RankPlan):
        return plan.consolidated.sampler.remaining
    return plan.source_length - plan.cursor.position - min(plan.window or 0, plan.source_length)


def _by_records(state: RunState) -> Remaining:
    """Take what the ledger counts from what the source's summary says."""
    plan, epochs = state.plan, state.ledger.epochs
    entry = epochs[-1] if epochs and epochs[-1].epoch == plan.epoch else None
    committed = entry.receipt.examples + entry.refused.receipt.examples if entry else 0
    tokens = max(0, state.source["tokens"] - (entry.tokens if entry else 0))
    if isinstance(plan, RankPlan):
        return Remaining(examples=plan.consolidated.sampler.remaining, tokens=tokens)
    return Remaining(examples=max(0, plan.source_length - committed), tokens=tokens)


def _of_steps(plan: StepPlannerState, source: ArrowSource) -> Remaining:
    planner = StepPlanner.from_state(plan, source.lengths, plan.options)
    examples = tokens = batches = steps = 0
    while planned := planner.steps(0, _STEPS_AT_ONCE):
        examples += sum(step.examples for step in planned)
        tokens += sum(step.real_tokens for step in planned)
        batches += sum(len(step.batches) for step in planned)
        steps += len(planned)
        planner.commit_to(planned[-1].end)
    return Remaining(examples=examples, tokens=tokens, batches=batches, steps=steps)


def _of_ranks(plan: RankPlan, source: ArrowSource, world_size: int, counted: Remaining) -> Remaining:
    counts = [
        StatefulTokenBatchSampler.reshard(plan.consolidated, r, world_size, source.lengths)
        for r in range(world_size)
    ]
    batches = [sampler.remaining_batches() for sampler in counts]
    return Remaining(
        examples=counted.examples,
        tokens=counted.tokens,
        batches=sum(batches),
        steps=rank_steps(batches, plan.batches_per_step),
    )


def rank_steps(batches: list[int], batches_per_step: int) -> int:
    """Return the steps that ranks with so many batches each take together under the rank deal."""
    micros = -(-batches_per_step // len(batches))
    return max(-(-count // micros) for count in batches)
