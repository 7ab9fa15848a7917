"""Plans by address: the n-th micro-batch of a rank, counted from where an attempt began.

Plans are made when they are asked for and kept until all ranks have committed them. The steps come from
a step source: one for the global deal, one for a rank's own deal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from raypack.batching.plan import TokenBatchPlan
from raypack.batching.sequence.plan_block import PlanBlock, RowMeta
from raypack.batching.sequence.planned_step import PlannedStep, StepSource
from raypack.batching.steps.step import StepCursor


class PlanBuffer:
    """The plans of some ranks, by number of micro-batch.

    Args:
        source: Steps from the beginning of the attempt; only this object advances it.
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
        """Drop the plans below micro-batch ``first``: they are committed and end at ``cursor``.

        Later plans stay; without any (a restarted actor), planning continues from ``cursor``.
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
        num_expired = max(0, min(self.floor, stop) - first)
        rows = [*self._rows(rank, first + num_expired, stop)]
        empty = np.empty(0, np.int64)
        width = len(RowMeta._fields)
        return PlanBlock(
            first=first,
            num_expired=num_expired,
            meta=np.array([[0] * width] * num_expired + [meta for meta, _ in rows], np.int64).reshape(
                -1, width
            ),
            counts=np.array([0] * num_expired + [len(plan.indices) for _, plan in rows], np.int64),
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
