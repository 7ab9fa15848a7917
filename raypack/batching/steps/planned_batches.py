"""The batches of an epoch, planned lazily."""

from __future__ import annotations

from typing import Protocol

from raypack.batching.steps.planned_run import Boundary, PlannedRun


class Packer(Protocol):
    """Makes batches of an epoch's order, from any boundary on; a pure function of the boundary."""

    def plan_run(self, start: Boundary, count: int) -> PlannedRun:
        """Return one or more batches from a boundary on, about ``count``; none at the epoch's end."""

    def count(self, start: Boundary) -> int:
        """Return how many batches there are from a boundary to the epoch's end."""


class PlannedBatches:
    """Batches from a boundary on.

    Args:
        packer: What makes them.
        start: Where the first begins.
    """

    def __init__(self, packer: Packer, start: Boundary) -> None:
        self._packer = packer
        self._start = start
        self._ended = False
        self.known = PlannedRun()

    def __len__(self) -> int:
        return len(self.known.plans)

    def extend_to(self, count: int) -> None:
        """Plan on until there are ``count`` batches or the epoch ends."""
        while len(self) < count and not self._ended:
            more = self._packer.plan_run(self.known.ends[-1] if len(self) else self._start, count - len(self))
            self._ended = not more.plans
            self.known.extend(more)

    def drop_to(self, count: int, end: Boundary) -> None:
        """Forget the first ``count`` batches, which end at ``end``.

        Where what is planned does not end a batch there (it was planned elsewhere, or not yet),
        all of it is forgotten and planning goes on from ``end``.
        """
        ends = self.known.ends
        reached = None if count > len(ends) else ends[count - 1] if count else self._start
        if reached == end:
            self.known.drop(count)
        else:
            self.known, self._ended = PlannedRun(), False
        self._start = end

    def count(self) -> int:
        """Return how many batches there are to the epoch's end."""
        return self._packer.count(self._start)
