"""Plans by address: the n-th micro-batch of a rank, counted from where an attempt began.

What lies ahead is planned when it is asked for and kept until all ranks have committed it. Where the
steps come from is the business of a step source: one for the global deal, one for a rank's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from raypack.actors.plan_block import PlanBlock, RowMeta
from raypack.batching.plan import TokenBatchPlan
from raypack.batching.step_plan import StepCursor


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


class AddressedPlans:
    """The plans of some ranks, by number of micro-batch.

    Args:
        source: Steps from where the attempt began; moved on by this object alone.
    """

    def __init__(self, source: StepSource) -> None:
        self._source = source
        self._planned: deque[tuple[int, PlannedStep]] = deque()
        self._frontier = 0
        self._ended = False

    @property
    def floor(self) -> int:
        """The lowest micro-batch that is still known."""
        return self._planned[0][0] if self._planned else self._frontier

    def move_to(self, first: int, epoch: int, cursor: StepCursor) -> None:
        """Learn that everything below micro-batch ``first`` is committed and ends at ``cursor``.

        What is planned beyond stays; where nothing is (a restarted actor), planning goes on there.
        """
        while self._planned and self._planned[0][0] + self._planned[0][1].micros <= first:
            self._planned.popleft()
        if first > self._frontier:
            self._source.move_to(epoch, cursor)
            self._frontier, self._ended = first, False

    def block(self, rank: int, first: int, count: int) -> PlanBlock:
        """Return the plans of micro-batches [first, first + count) of a rank; fewer at the run's end."""
        while not self._ended and self._frontier < first + count:
            self._plan_step()
        stop = min(first + count, self._frontier)
        gone = max(0, min(self.floor, stop) - first)
        rows = [*self._rows(rank, first + gone, stop)]
        empty = np.empty(0, np.int64)
        width = len(RowMeta._fields)
        return PlanBlock(
            first=first,
            gone=gone,
            meta=np.array([[0] * width] * gone + [meta for meta, _ in rows], np.int64).reshape(-1, width),
            counts=np.array([0] * gone + [len(plan.indices) for _, plan in rows], np.int64),
            indices=np.concatenate([empty, *(plan.indices for _, plan in rows)]),
        )

    def _plan_step(self) -> None:
        step = self._source.next_step()
        if step is None:
            self._ended = True
        else:
            self._planned.append((self._frontier, step))
            self._frontier += step.micros

    def _rows(self, rank: int, start: int, stop: int) -> Iterator[tuple[RowMeta, TokenBatchPlan]]:
        for first, step in self._planned:
            for micro, plan in enumerate(step.ranks[rank]):
                if start <= first + micro < stop:
                    yield _meta(step, micro, plan), plan
            if first + step.micros >= stop:
                return


def _meta(step: PlannedStep, micro: int, plan: TokenBatchPlan) -> RowMeta:
    return RowMeta(
        epoch=step.epoch,
        step=step.index,
        micro=micro,
        micros=step.micros,
        step_batches=step.batches,
        step_supervised=step.supervised_tokens,
        step_tokens=step.real_tokens,
        step_imbalance=round(1e6 * step.imbalance),
        real_tokens=plan.real_tokens,
        maximum_length=plan.maximum_sequence_length,
        token_slots=plan.token_slots,
        end_position=step.end.position,
        end_batches=step.end.batches,
    )
