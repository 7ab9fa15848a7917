"""How a loader follows a deal: what the next step is, what is committed, what a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from raypack.batching.step_plan import StepCursor
from raypack.data.blocks import StreamRow
from raypack.errors import StreamError


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
    end: StepCursor
    """The boundary after the step, for the deal that it is of."""


class Rows:
    """The stream's rows, one of which can be looked at before it is taken.

    Args:
        rows: In the order of the stream.
        has_row: Whether the next one comes without waiting.
    """

    def __init__(self, rows: Iterator[StreamRow], has_row: Callable[[], bool] = lambda: False) -> None:
        self._rows = rows
        self._has_row = has_row
        self._next: StreamRow | None = None

    def peek(self) -> StreamRow | None:
        """Return the next row without taking it, or None at the end of the run."""
        if self._next is None:
            self._next = next(self._rows, None)
        return self._next

    def at_hand(self) -> StreamRow | None:
        """Return the next row without taking it, or None where that would have to be waited for."""
        return self.peek() if self._next is not None or self._has_row() else None

    def take(self) -> StreamRow | None:
        """Return the next row, or None at the end of the run."""
        row, self._next = self.peek(), None
        return row


class Deal(Protocol):
    """One rank's side of a deal, in the train process."""

    kind: str
    """``global`` or ``rank``."""

    @property
    def epoch(self) -> int:
        """Number of the present epoch."""

    @property
    def cursor(self) -> StepCursor:
        """The boundary after the last committed step."""

    def begin(self, rows: Rows) -> StepFacts | None:
        """Return the next step, or None at the end of the run.

        Raises:
            StreamError: The stream gives another step than comes next, or ended before the run.
        """

    def commit(self, facts: StepFacts) -> None:
        """Move over a step that was trained."""

    def shared(self) -> Any:
        """Return JSON values that must be equal on all ranks at a report."""

    def plan(self) -> dict[str, Any]:
        """Return what a checkpoint keeps once: JSON values for the run's state."""

    def own(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps of each rank, or None where ranks have nothing of their own."""


def ended_early(epoch: int, steps: int) -> StreamError:
    """Return the error for a stream that ends before the run, such as after an error that was caught."""
    return StreamError(
        f"the stream has ended after {steps} steps of epoch {epoch}, but the run has not: an error that it "
        "raised must end the train function, so that Ray Train begins again from the checkpoint"
    )
