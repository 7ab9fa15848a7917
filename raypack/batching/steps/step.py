"""One optimizer step of the global plan, and its position in the epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raypack.arguments import integer
from raypack.batching.plan import TokenBatchPlan
from raypack.batching.steps.assignment import AttentionCost, deal_batches

EMPTY_PLAN = TokenBatchPlan(np.empty(0, np.int64), 0, 0, 0)
"""A micro-batch without an example: keeps ranks together where batches do not divide."""


@dataclass(frozen=True, slots=True)
class StepCursor:
    """A boundary between two steps of an epoch: all that is needed to go on from there.

    Under greedy packing ``position`` counts the examples before the boundary and ``batches`` is 0.
    Under windows ``position`` is the first example of the window and ``batches`` counts the batches
    of that window that lie before the boundary.
    """

    steps: int = 0
    """Optimizer steps of this epoch before the boundary."""
    position: int = 0
    """Positions of the epoch's order before the boundary (greedy) or before the window."""
    batches: int = 0
    """Batches of the window before the boundary."""

    def __post_init__(self) -> None:
        for name in ("steps", "position", "batches"):
            value = integer(f"cursor.{name}", getattr(self, name), minimum=0, maximum=2**62)
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The batches that all ranks together train between two commits."""

    index: int
    """Number of the step in its epoch, from 0."""
    batches: tuple[TokenBatchPlan, ...]
    """The step's batches, in the plan's order."""
    square_sums: tuple[int, ...]
    """Σ length² of each batch (packed), or rows · longest² (padded)."""
    supervised_tokens: int
    """Label tokens of the whole step, over all ranks."""
    end: StepCursor
    """Where the step ends, so that a commit plans nothing again."""

    @property
    def real_tokens(self) -> int:
        """Tokens of the step's examples, padding not counted."""
        return sum(batch.real_tokens for batch in self.batches)

    @property
    def examples(self) -> int:
        """Examples of the step."""
        return sum(len(batch.indices) for batch in self.batches)

    def costs(self, attention_cost: AttentionCost | None = None) -> list[int]:
        """Return the attention cost of each batch; see `AttentionCost`."""
        cost = AttentionCost.of(attention_cost)
        return [
            cost.linear * batch.token_slots + cost.quadratic * squares
            for batch, squares in zip(self.batches, self.square_sums, strict=True)
        ]

    def micro_batches(self, world_size: int) -> int:
        """Return how many micro-batches each of ``world_size`` ranks trains in this step."""
        return -(-len(self.batches) // integer("world_size", world_size, minimum=1))

    def deal(
        self, world_size: int, attention_cost: AttentionCost | None = None
    ) -> tuple[tuple[TokenBatchPlan, ...], ...]:
        """Deal the step to data ranks.

        Args:
            world_size: The number of data ranks, any.
            attention_cost: Weights of the balance; None is the default of `AttentionCost`.

        Returns:
            For each rank its plans; all ranks the same number, filled up with empty plans.

        Raises:
            SamplerError: ``world_size`` is not positive.
        """
        return self.dealt(world_size, attention_cost).ranks

    def dealt(self, world_size: int, attention_cost: AttentionCost | None = None) -> DealtStep:
        """Deal the step to data ranks, and tell how even they are; see `deal`."""
        count, costs = self.micro_batches(world_size), self.costs(attention_cost)
        dealt = deal_batches(costs, world_size)
        ranks = tuple(
            tuple(self.batches[p] for p in positions) + (EMPTY_PLAN,) * (count - len(positions))
            for positions in dealt
        )
        total, slowest = sum(costs), max(sum(costs[p] for p in positions) for positions in dealt)
        return DealtStep(ranks, slowest * world_size / total if total else 1.0)


@dataclass(frozen=True, slots=True)
class DealtStep:
    """A step as its ranks train it."""

    ranks: tuple[tuple[TokenBatchPlan, ...], ...]
    """The plans of each rank, equally many."""
    imbalance: float
    """The greatest attention cost of a rank over the mean of all; 1.0 is even."""
