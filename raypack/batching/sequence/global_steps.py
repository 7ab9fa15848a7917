"""Steps of the global deal: planned for all ranks together, dealt to them."""

from __future__ import annotations

from raypack.batching.sequence.planned_step import PlannedStep
from raypack.batching.steps.assignment import AttentionCost
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.step import StepCursor


class GlobalSteps:
    """A step source over a `StepPlanner`, epoch after epoch.

    Args:
        planner: A planner where the attempt began; moved on by this object alone.
        world_size: The number of data ranks.
        epochs: Epochs of the run.
        attention_cost: Weights of the balance over ranks.
    """

    def __init__(
        self, planner: StepPlanner, *, world_size: int, epochs: int, attention_cost: AttentionCost
    ) -> None:
        self._planner = planner
        self._world_size = world_size
        self._epochs = epochs
        self._cost = attention_cost

    def move_to(self, epoch: int, cursor: StepCursor) -> None:
        """Go on from a boundary."""
        if epoch != self._planner.epoch:
            self._planner.start_epoch(epoch)
        self._planner.commit_to(cursor)

    def next_step(self) -> PlannedStep | None:
        """Return the next step, dealt to all ranks, or None at the end of the run."""
        planner = self._planner
        while planner.finished or planner.epoch >= self._epochs:
            if planner.epoch + 1 >= self._epochs or not len(planner.lengths):
                return None
            planner.start_epoch(planner.epoch + 1)
        (step,) = planner.steps(0, 1)
        planner.commit_to(step.end)
        dealt = step.dealt(self._world_size, self._cost)
        return PlannedStep(
            epoch=planner.epoch,
            index=step.index,
            batches=len(step.batches),
            supervised_tokens=step.supervised_tokens,
            real_tokens=step.real_tokens,
            end=step.end,
            ranks=dict(enumerate(dealt.ranks)),
            imbalance=dealt.imbalance,
        )
