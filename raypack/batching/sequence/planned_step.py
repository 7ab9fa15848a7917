"""A step as its ranks will train it, and the interface of what yields such steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from raypack.batching.plan import TokenBatchPlan
from raypack.batching.steps.step import StepCursor


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step as its ranks will train it."""

    epoch: int
    index: int
    """Number of the step in its epoch."""
    batches: int
    """Batches of the step, empty ones not counted; of all ranks, or of the one that is planned for."""
    supervised_tokens: int
    """Label tokens of those."""
    real_tokens: int
    """Tokens of those."""
    end: StepCursor
    ranks: Mapping[int, tuple[TokenBatchPlan, ...]]
    """The micro-batches of each rank, equally many."""
    imbalance: float = 0.0
    """The greatest attention cost of a rank over the mean of all; 0.0 where a rank knows itself alone."""

    @property
    def micros(self) -> int:
        """Micro-batches of each rank."""
        return len(next(iter(self.ranks.values())))


class StepSource(Protocol):
    """Gives steps one after another, and can be moved to any boundary between two."""

    def next_step(self) -> PlannedStep | None:
        """Return the next step, or None at the end of the run."""

    def move_to(self, epoch: int, cursor: StepCursor) -> None:
        """Go on from a boundary."""
