"""Whether a run has reached its goal, what it has not trained, and what the goal leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from raypack.audit.verdict import EpochAudit, NotTrained
from raypack.checkpoint.goal import Goal


def is_reached(goal: Goal, epochs: Sequence[EpochAudit]) -> bool:
    """Return whether the goal's steps, or all of its epochs, are done; never without a step."""
    if goal.max_steps is not None and _steps(epochs) >= goal.max_steps:
        return True
    whole = len(epochs) >= goal.epochs and all(epoch.complete for epoch in epochs[: goal.epochs])
    return whole and bool(_steps(epochs))


def not_trained(goal: Goal, epochs: Sequence[EpochAudit], examples: int) -> NotTrained:
    """Return what of a goal is not trained.

    Args:
        goal: The goal.
        epochs: The epochs of which a step is done.
        examples: Examples of the source.
    """
    committed = sum(min(epoch.committed, examples) for epoch in epochs[: goal.epochs])
    left = 0 if is_reached(goal, epochs) else goal.epochs * examples - committed
    return NotTrained(
        skipped_steps=sum(epoch.refused.steps for epoch in epochs),
        skipped_examples=sum(epoch.refused.receipt.examples for epoch in epochs),
        steps=None if goal.max_steps is None else max(0, goal.max_steps - _steps(epochs)),
        examples=left,
    )


def left_out(goal: Goal, epochs: Sequence[EpochAudit], examples: int) -> tuple[str, ...]:
    """Say what of the epochs a goal leaves out on purpose, once it is reached."""
    if not is_reached(goal, epochs):
        return ()
    said = [
        f"{_reason(goal, epoch.epoch)} leaves out {examples - epoch.committed:,} of {examples:,} examples of "
        f"epoch {epoch.epoch}"
        for epoch in epochs
        if not epoch.complete
    ]
    after = goal.epochs - len(epochs)
    if after > 0:
        which = f"epoch {len(epochs)}" if after == 1 else f"epochs {len(epochs)} to {goal.epochs - 1}"
        said.append(f"max_steps={goal.max_steps:,} leaves out {which}, {examples:,} examples each")
    return tuple(said)


def _reason(goal: Goal, epoch: int) -> str:
    if epoch >= goal.epochs:
        return f"epochs={goal.epochs:,}, which the run was given when epoch {epoch} had begun,"
    return f"max_steps={goal.max_steps:,}"


def _steps(epochs: Sequence[EpochAudit]) -> int:
    return sum(epoch.steps for epoch in epochs)
