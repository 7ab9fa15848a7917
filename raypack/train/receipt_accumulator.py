"""What this rank has trained in this attempt, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raypack.checkpoint.ledger import MOST_NUMBERS, EpochEntry, Refused
from raypack.sampling.receipt import Receipt, receipt_key

_HASHED_AT_ONCE = 64
"""Batches whose indices wait to be hashed: those of one batch cost as much as those of fifty."""


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """A batch of a step that has ended."""

    indices: npt.NDArray[np.int64]
    """Source indices, shape (documents,); never written."""
    tokens: int
    observed: bool = False
    """Whether a gradient reached its loss."""


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A step that has ended, as this rank trained it."""

    index: int
    """Number of the step in the run."""
    epoch: int
    batches: tuple[TrainedBatch, ...]
    retries: int
    """How often it was begun again."""
    skipped: bool


class ReceiptAccumulator:
    """Adds up steps.

    Args:
        source_id: The fingerprint of the source.
    """

    def __init__(self, source_id: str) -> None:
        self._source_id = source_id
        self._entries: dict[int, EpochEntry] = {}
        self._waiting: list[TrainedStep] = []
        self._batches = 0
        self._steps = 0

    @property
    def steps(self) -> int:
        """Steps that were added."""
        return self._steps

    def add(self, step: TrainedStep) -> None:
        """Add a step; its indices are kept until they are hashed, some batches later."""
        self._waiting.append(step)
        self._steps += 1
        self._batches += len(step.batches)
        if self._batches >= _HASHED_AT_ONCE:
            self._hash()

    def entries(self) -> list[EpochEntry]:
        """Return what all steps so far add to the ledger, by epoch, ascending."""
        self._hash()
        return [self._entries[epoch] for epoch in sorted(self._entries)]

    def _hash(self) -> None:
        for epoch in dict.fromkeys(step.epoch for step in self._waiting):
            steps = [step for step in self._waiting if step.epoch == epoch]
            entry = entry_of(receipt_key(self._source_id, epoch), steps)
            known = self._entries.get(epoch)
            self._entries[epoch] = entry if known is None else known + entry
        self._waiting, self._batches = [], 0


def entry_of(key: int, steps: Sequence[TrainedStep]) -> EpochEntry:
    """Return what steps of one epoch add to the ledger; those that were skipped are counted apart.

    Args:
        key: The key of the epoch's receipts.
        steps: At least one.
    """
    skipped = [step for step in steps if step.skipped]
    trained = [batch for step in steps if not step.skipped for batch in step.batches if len(batch.indices)]
    return EpochEntry(
        epoch=steps[0].epoch,
        steps=len(steps),
        receipt=_receipt(key, trained),
        batches=len(trained),
        observed=sum(batch.observed for batch in trained),
        refused=Refused(
            retries=sum(step.retries for step in steps),
            steps=len(skipped),
            numbers=tuple(step.index for step in skipped[:MOST_NUMBERS]),
            receipt=_receipt(key, [batch for step in skipped for batch in step.batches]),
        ),
    )


def _receipt(key: int, batches: list[TrainedBatch]) -> Receipt:
    """Return the receipt of batches, all hashed at once."""
    if not batches:
        return Receipt()
    indices = np.concatenate([batch.indices for batch in batches])
    return Receipt.of(key, indices, sum(batch.tokens for batch in batches))
