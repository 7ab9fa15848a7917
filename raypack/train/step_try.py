"""One try of a step: the micro-batches it has given, and whether each was synced and trained."""

from __future__ import annotations

import weakref

import torch

from raypack.arguments import type_name
from raypack.collate import PackedBatch
from raypack.errors import LoaderError
from raypack.train.gradient_flags import GradientFlags
from raypack.train.gradient_sync import SyncCalls


class StepTry:
    """The part of a step that `Step.retry` resets.

    Args:
        step: Number of the step.
        micros: Micro-batches of the step.
    """

    def __init__(self, step: int, micros: int) -> None:
        self._step = step
        self.given = 0
        """Micro-batches that the loop has taken."""
        self.syncs = SyncCalls(step, micros)
        self.flags = GradientFlags(micros)
        self._numbers: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def give(self, batch: PackedBatch) -> None:
        """Record that the loop takes the next micro-batch."""
        self._numbers[id(batch.input_ids)] = (weakref.ref(batch.input_ids), self.given)
        self.given += 1

    def number_of(self, batch: PackedBatch, what: str) -> int:
        """Return which micro-batch a batch is.

        Args:
            batch: As it was given.
            what: The method of the step that was called with it.

        Raises:
            TypeError: It is no `PackedBatch`.
            LoaderError: It was not given in this try of the step.
        """
        if not isinstance(batch, PackedBatch):
            raise TypeError(
                f"step.{what} needs the batch that the step gave, a PackedBatch, got {type_name(batch)}"
            )
        known, micro = self._numbers.get(id(batch.input_ids), (None, 0))
        if known is None or known() is not batch.input_ids:  # ids are reused once an object is freed
            raise LoaderError(
                f"step.{what} needs a batch of step {self._step} and of its present try, got one of another "
                "step, or of before retry()"
            )
        return micro
