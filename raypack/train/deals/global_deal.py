"""The global deal in the train process: a planner's cursor that follows what is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.step import StepCursor
from raypack.errors import StreamError
from raypack.train.counting import count_run
from raypack.train.deals.deal import StepFacts, ended_early
from raypack.train.deals.rows import Rows

if TYPE_CHECKING:
    from raypack.checkpoint.ledger import Attempt
    from raypack.source import ArrowSource
    from raypack.train.recipe import PackedData


class GlobalDeal:
    """Steps come planned for all ranks together, so the stream knows all of a step in advance."""

    kind = "global"

    def __init__(self, planner: StepPlanner, epochs: int) -> None:
        self._planner = planner
        self._epochs = epochs
        self._before: dict[str, Any] | None = None

    @property
    def epoch(self) -> int:
        """Number of the present epoch."""
        return self._planner.epoch

    @property
    def cursor(self) -> StepCursor:
        """The boundary after the last committed step."""
        return self._planner.cursor

    @property
    def batches_per_step(self) -> int:
        """Batches of every step but an epoch's last."""
        return self._planner.batches_per_step

    def count_steps(
        self, recipe: PackedData, source: ArrowSource, attempts: Sequence[Attempt], done: int
    ) -> int:
        """Return the optimizer steps of the whole run, as it stands and is planned now."""
        return count_run(recipe, source, self._planner, attempts, done)

    def begin(self, rows: Rows) -> StepFacts | None:
        """Return the next step, or None at the end of the run.

        Raises:
            StreamError: The stream gives another step than comes next, or ended before the run.
        """
        row, planner = rows.peek(), self._planner
        if row is None:
            ended = planner.epoch >= self._epochs or (planner.finished and planner.epoch + 1 == self._epochs)
            if len(planner.lengths) and not ended:
                raise ended_early(planner.epoch, planner.cursor.steps)
            return None
        meta = row.meta
        if planner.finished and meta.epoch == planner.epoch + 1:
            self._before = self.plan()  # the state until a step of the new epoch is committed
            planner.start_epoch(meta.epoch)
        expected = (planner.epoch, planner.cursor.steps, 0)
        if (meta.epoch, meta.step, meta.micro) != expected:
            raise StreamError(
                f"epoch, step and micro-batch {expected} must come next, got "
                f"{(meta.epoch, meta.step, meta.micro)}"
            )
        return StepFacts(
            epoch=meta.epoch,
            step=meta.step,
            micros=meta.micros,
            rows=meta.micros,
            batches=meta.step_batches,
            tokens=meta.step_tokens,
            supervised=meta.step_supervised,
            imbalance=meta.step_imbalance / 1e6,
            end=StepCursor(meta.step + 1, meta.end_position, meta.end_batches),
        )

    def commit(self, facts: StepFacts) -> None:
        """Move over a step that was trained."""
        self._planner.commit_to(facts.end)
        self._before = None

    def shared(self) -> Any:
        """Return the planner's state: equal on all ranks by nature."""
        return self.plan()

    def plan(self) -> dict[str, Any]:
        """Return the planner's state after the last commit."""
        return self._before or self._planner.state().to_dict()

    def own(self) -> dict[str, Any] | None:
        """Return None: ranks have nothing of their own."""
        return None
