"""How a loader follows a deal: what the next step is, what is committed, what a checkpoint keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from raypack.batching.steps.step import StepCursor
from raypack.errors import StreamError
from raypack.train.deals.rows import Rows

if TYPE_CHECKING:
    from raypack.checkpoint.ledger import Attempt
    from raypack.source import ArrowSource
    from raypack.train.recipe import PackedData


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What is known of a step before any of it is read."""

    epoch: int
    step: int
    """Number of the step in its epoch."""
    micros: int
    """Micro-batches on every rank."""
    rows: int
    """Those of them that come from this rank's stream; the others are empty."""
    batches: int
    """Batches over all ranks, empty ones not counted."""
    tokens: int
    """Tokens over all ranks."""
    supervised: int
    """Label tokens over all ranks."""
    imbalance: float = math.nan
    """The greatest attention cost of a rank over the mean of all; NaN where it is not known."""
    end: StepCursor
    """The boundary after the step, in its deal."""


class Deal(Protocol):
    """One rank's part in a deal, in the train process."""

    kind: str
    """``global`` or ``rank``."""

    @property
    def epoch(self) -> int:
        """Number of the present epoch."""

    @property
    def cursor(self) -> StepCursor:
        """The boundary after the last committed step."""

    @property
    def batches_per_step(self) -> int:
        """Batches of a step over all ranks."""

    def count_steps(
        self, recipe: PackedData, source: ArrowSource, attempts: Sequence[Attempt], done: int
    ) -> int:
        """Return the optimizer steps of the whole run, ``done`` of which are committed; see `count_run`.

        Raises:
            SamplerError: The deal does not know them in advance.
        """

    def begin(self, rows: Rows) -> StepFacts | None:
        """Return the next step, or None at the end of the run.

        Raises:
            StreamError: The stream gives another step than comes next, or ended before the run.
        """

    def commit(self, facts: StepFacts) -> None:
        """Advance past a step that was trained."""

    def shared(self) -> Any:
        """Return JSON values that must be equal on all ranks at a report."""

    def plan(self) -> dict[str, Any]:
        """Return what a checkpoint keeps once: JSON values for the run's state."""

    def own(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps of each data rank, or None where none has anything of its own."""


def ended_early(epoch: int, steps: int) -> StreamError:
    """Return the error for a stream that ends before the run, such as after an error that was caught."""
    return StreamError(
        f"the stream has ended after {steps} steps of epoch {epoch}, but the run has not: an error that it "
        "raised must end the train function, so that Ray Train begins again from the checkpoint"
    )
