"""Plans by address: the n-th micro-batch of a rank, counted from where an attempt began.

All ranks train equally many micro-batches in a step, so one number addresses the same step on
every rank. What lies ahead is planned when it is asked for and kept until all have committed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from raypack.actors.plan_block import PlanBlock, RowMeta
from raypack.batching.deal import AttentionCost
from raypack.batching.plan import TokenBatchPlan
from raypack.batching.step_plan import StepCursor, StepPlan
from raypack.batching.step_planner import StepPlanner


@dataclass(frozen=True, slots=True)
class _Planned:
    first: int
    epoch: int
    step: StepPlan
    ranks: tuple[tuple[TokenBatchPlan, ...], ...]

    @property
    def micros(self) -> int:
        return len(self.ranks[0])


class AddressedPlans:
    """The plans of all ranks, by number of micro-batch.

    Args:
        planner: A planner at the state where the attempt began; moved on by this object alone.
        world_size: The number of data ranks.
        epochs: Epochs of the run; planning ends after the last of them.
        attention_cost: Weights of the balance over ranks.
    """

    def __init__(
        self, planner: StepPlanner, *, world_size: int, epochs: int, attention_cost: AttentionCost
    ) -> None:
        self._planner = planner
        self._world_size = world_size
        self._epochs = epochs
        self._cost = attention_cost
        self._planned: deque[_Planned] = deque()
        self._frontier = 0
        self._ended = False

    @property
    def floor(self) -> int:
        """The lowest micro-batch that is still known."""
        return self._planned[0].first if self._planned else self._frontier

    def move_to(self, first: int, epoch: int, cursor: StepCursor) -> None:
        """Learn that everything below micro-batch ``first`` is committed and ends at ``cursor``.

        What is planned beyond stays; where nothing is (a restarted actor), planning goes on there.
        """
        while self._planned and self._planned[0].first + self._planned[0].micros <= first:
            self._planned.popleft()
        if first > self._frontier:
            if epoch != self._planner.epoch:
                self._planner.start_epoch(epoch)
            self._planner.commit_to(cursor)
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
        while self._planner.finished or self._planner.epoch >= self._epochs:
            if self._planner.epoch + 1 >= self._epochs:
                self._ended = True
                return
            self._planner.start_epoch(self._planner.epoch + 1)
            if not len(self._planner.lengths):
                self._ended = True
                return
        (step,) = self._planner.steps(0, 1)
        ranks = step.deal(self._world_size, self._cost)
        self._planned.append(_Planned(self._frontier, self._planner.epoch, step, ranks))
        self._frontier += len(ranks[0])
        self._planner.commit_to(step.end)

    def _rows(self, rank: int, start: int, stop: int) -> Iterator[tuple[RowMeta, TokenBatchPlan]]:
        for planned in self._planned:
            for micro, plan in enumerate(planned.ranks[rank]):
                if start <= planned.first + micro < stop:
                    yield _meta(planned, micro, plan), plan
            if planned.first + planned.micros >= stop:
                return


def _meta(planned: _Planned, micro: int, plan: TokenBatchPlan) -> RowMeta:
    step = planned.step
    return RowMeta(
        epoch=planned.epoch,
        step=step.index,
        micro=micro,
        micros=planned.micros,
        step_batches=len(step.batches),
        step_supervised=step.supervised_tokens,
        step_tokens=step.real_tokens,
        real_tokens=plan.real_tokens,
        maximum_length=plan.maximum_sequence_length,
        token_slots=plan.token_slots,
        end_position=step.end.position,
        end_batches=step.end.batches,
    )
