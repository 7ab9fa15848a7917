"""Checks that the parts of a run's state are consistent: its plan, its ledger, its source's summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raypack.arguments import shown
from raypack.batching.steps.state import StepPlannerState
from raypack.checkpoint.rank_plan import RankPlan
from raypack.errors import CheckpointError

if TYPE_CHECKING:
    from raypack.checkpoint.run_state import RunState

MOST_WINDOW = 1 << 22
"""The most examples of a best-fit window, four times the largest default."""
_SUMMARY = {
    "fingerprint": str,
    "examples": int,
    "tokens": int,
    "contents": str,
    "lengths": str,
    "supervised": str,
    "schema": dict,
    "prepared": dict,
}


def check_story(state: RunState) -> None:
    """Refuse a state whose parts contradict each other, before anything is opened or planned.

    Raises:
        CheckpointError: They do; the message names both.
    """
    _check_summary(state.source, state.plan)
    _check_epoch(state)
    if isinstance(state.plan, RankPlan):
        _check_ranks(state.plan, state.world_size)
    else:
        _check_cursor(state.plan)


def _check_summary(summary: Mapping[str, Any], plan: StepPlannerState | RankPlan) -> None:
    for name, kind in _SUMMARY.items():
        if type(summary.get(name)) is not kind:
            raise CheckpointError(
                f"source must have a field {name!r} of a source's summary, got {shown(summary)}"
            )
    expected = {
        "fingerprint": plan.source_id,
        "examples": plan.source_length,
        "lengths": plan.lengths_digest,
    }
    for name, value in expected.items():
        if summary[name] != value:
            raise CheckpointError(f"source: {name} must be {value!r}, the plan's, got {shown(summary[name])}")
    if summary["tokens"] < plan.source_length:
        raise CheckpointError(
            f"source: tokens must be at least {plan.source_length}, one an example, got {summary['tokens']}"
        )


def _check_epoch(state: RunState) -> None:
    """The plan stands in the ledger's last epoch, or at the start of the next."""
    plan, epochs = state.plan, state.ledger.epochs
    trained = epochs[-1].steps if epochs and epochs[-1].epoch == plan.epoch else 0
    last = len(epochs) - 1
    # An epoch without a step is in no ledger; an empty source has no other.
    there = plan.epoch in (last, last + 1) if plan.source_length else plan.epoch < state.goal.epochs
    if not there or trained != plan.steps:
        stands = f"epoch {last}" if epochs else "no epoch"
        raise CheckpointError(
            f"the plan stands at step {plan.steps} of epoch {plan.epoch}, the ledger has {trained} steps of "
            f"it and ends in {stands}"
        )
    for entry in epochs:
        if entry.steps > plan.source_length:
            raise CheckpointError(
                f"the ledger has {entry.steps} steps of epoch {entry.epoch}, the source's "
                f"{plan.source_length} examples make no more than as many"
            )


def _check_cursor(plan: StepPlannerState) -> None:
    """A step has a batch and a batch an example, so steps bound the cursor's place and it them."""
    cursor = plan.cursor
    if min(plan.window or 0, plan.source_length) > MOST_WINDOW:
        raise CheckpointError(f"the plan's window must be at most {MOST_WINDOW}, got {plan.window}")
    begun = (cursor.position, cursor.batches, len(plan.repacked)) != (0, 0, 0)
    batches = cursor.position + cursor.batches + sum(part.batches for part in plan.repacked)
    if begun != bool(cursor.steps) or cursor.steps > batches:
        raise CheckpointError(
            f"the plan's cursor must lie {cursor.steps} steps into the epoch, each of a batch or more, got "
            f"position {cursor.position} and batch {cursor.batches} of the window there"
        )


def _check_ranks(plan: RankPlan, world_size: int) -> None:
    sampler = plan.consolidated.sampler
    if sampler.order is not None:
        raise CheckpointError("the ranks' records must have no explicit order: a run's order is computed")
    if bool(sampler.consumed) != bool(plan.steps) or plan.steps > sampler.consumed:
        raise CheckpointError(
            f"the ranks' records must hold {plan.steps} steps, each of an example or more, on "
            f"{world_size} ranks; they have trained {sampler.consumed} examples of epoch {plan.epoch}"
        )
