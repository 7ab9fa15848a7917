"""Steps of the rank deal: a fixed number of the rank's own batches, whatever the other ranks have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from raypack.batching.lengths import LengthTable
from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.batching.rank.state import TokenBatchState
from raypack.batching.sequence.planned_step import PlannedStep
from raypack.batching.steps.step import EMPTY_PLAN, StepCursor


class RankSteps:
    """A step source over one rank's `StatefulTokenBatchSampler`, epoch after epoch.

    The rank's last step of an epoch is filled up with empty micro-batches. Nothing is known here of
    other ranks: those that have more go on, and the train loops keep together by a flag a step.

    Args:
        state: The rank's state where the attempt began.
        lengths: The source's length table.
        supervised: Label tokens of each example of the source.
        micros: Micro-batches of a step on each rank.
        steps: Steps of the epoch before the state.
        epochs: Epochs of the run.
    """

    def __init__(
        self,
        state: TokenBatchState,
        lengths: LengthTable,
        supervised: npt.NDArray[np.int32],
        *,
        micros: int,
        steps: int,
        epochs: int,
    ) -> None:
        self._lengths = lengths
        self._supervised = supervised
        self._micros = micros
        self._steps = steps
        self._epochs = epochs
        self._began = state
        self._sampler = StatefulTokenBatchSampler.from_state(state, lengths)

    def move_to(self, epoch: int, cursor: StepCursor) -> None:
        """Go on from a boundary: ``cursor.position`` examples of the epoch's shard are committed."""
        state = self._began
        if epoch != state.sampler.epoch:
            fresh = StatefulTokenBatchSampler.from_state(state, self._lengths)
            fresh.start_epoch(epoch)
            state = fresh.state()
        moved = replace(state, sampler=replace(state.sampler, committed=cursor.position))
        self._sampler = StatefulTokenBatchSampler.from_state(moved, self._lengths)
        self._steps = cursor.steps

    def next_step(self) -> PlannedStep | None:
        """Return the rank's next step, or None at the end of the run."""
        sampler = self._sampler
        while sampler.sampler.epoch >= self._epochs or not (plans := sampler.plans(0, self._micros)):
            if sampler.sampler.epoch + 1 >= self._epochs:
                return None
            sampler.start_epoch(sampler.sampler.epoch + 1)
            self._steps = 0
        indices = np.concatenate([plan.indices for plan in plans])
        commit_examples(sampler, len(indices))
        self._steps += 1
        return PlannedStep(
            epoch=sampler.sampler.epoch,
            index=self._steps - 1,
            batches=len(plans),
            supervised_tokens=int(np.sum(self._supervised[indices], dtype=np.int64)),
            real_tokens=sum(plan.real_tokens for plan in plans),
            end=StepCursor(self._steps, sampler.sampler.committed, 0),
            ranks={sampler.sampler.rank: (*plans, *[EMPTY_PLAN] * (self._micros - len(plans)))},
        )


def commit_examples(sampler: StatefulTokenBatchSampler, examples: int) -> None:
    """Issue and commit the next examples of a rank's shard, which were trained."""
    if examples:
        sampler.sampler.next_indices(examples)
        sampler.commit(examples)
