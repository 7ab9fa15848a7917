"""The records of an audit: the findings for each epoch and for the run, and the verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from raypack.checkpoint.goal import Goal
from raypack.checkpoint.ledger import Attempt, Refused

COMPLETE, CONSISTENT, FAULT, NO_RUN = "complete", "consistent so far", "fault", "no run"
_EXIT_CODES = {COMPLETE: 0, FAULT: 1, NO_RUN: 2, CONSISTENT: 3}


@dataclass(frozen=True, slots=True)
class EpochAudit:
    """What the audit found of one epoch."""

    epoch: int
    steps: int
    trained: int
    """Examples that the receipts count."""
    examples: int
    """Examples of the source."""
    tokens: int
    """Tokens that the receipts count."""
    refused: Refused
    """Steps that were begun again, and those that were skipped with what they held."""
    fill: float
    """Tokens over the budgets of the batches that were planned for them, 0.0 to 1.0."""
    complete: bool
    """True when the epoch's plan is done to its end."""
    findings: tuple[str, ...]
    batches: int = 0
    """Batches that the train loops committed, those of skipped steps not counted."""
    observed: int = 0
    """Those of them that were seen to be trained: a gradient reached their loss."""

    @property
    def committed(self) -> int:
        """Examples of its committed steps: those that were trained and those of skipped steps."""
        return self.trained + self.refused.receipt.examples


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTrained:
    """What of a run's goal is not trained."""

    skipped_steps: int = 0
    """Steps that the train function skipped with `step.skip()`."""
    skipped_examples: int = 0
    """What these held."""
    steps: int | None = None
    """Steps to the goal's ``max_steps``; None where it has none. The goal may be reached before."""
    examples: int = 0
    """Examples to the end of the goal's epochs, skipped ones not counted; 0 where the goal is reached."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcome of `verify`."""

    checkpoint: str
    """Path of the checkpoint that was read; empty where none could be."""
    attempts: tuple[Attempt, ...] = ()
    """The lineage: which workers trained which steps."""
    epochs: tuple[EpochAudit, ...] = ()
    findings: tuple[str, ...] = ()
    """What is wrong, a sentence each; empty when all is well."""
    goal: Goal | None = None
    """What the run is to do, as its last checkpoint says; None where none could be read."""
    reached: bool = False
    """True when the goal is: its steps, or all of its epochs, are done."""
    not_trained: NotTrained = NotTrained()
    left_out: tuple[str, ...] = ()
    """What the goal leaves out on purpose, a sentence each; said where it is reached."""
    found: bool = True
    """False where there is no run, or none with a checkpoint."""

    @property
    def consistent(self) -> bool:
        """True when there is no fault so far, whether or not the run has reached its goal.

        Each example of the committed steps was trained exactly once, or was in a step that was skipped.
        """
        return self.found and not self.findings

    @property
    def ok(self) -> bool:
        """True when the run is complete: its goal reached, each planned example trained exactly once."""
        return self.verdict == COMPLETE

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the ledger cannot tell, a sentence an epoch; it changes no verdict."""
        unseen = [(epoch, epoch.batches - epoch.observed) for epoch in self.epochs]
        return tuple(
            f"epoch {epoch.epoch}: no gradient was seen to reach {count:,} of the losses of "
            f"{epoch.batches:,} batches: step.loss or step.observe shows it"
            for epoch, count in unseen
            if count
        )

    @property
    def verdict(self) -> str:
        """``complete``, ``consistent so far``, ``fault`` or ``no run``."""
        return self.allowing()

    def allowing(self, *, unfinished: bool = False, skipped: bool = False) -> str:
        """Return the verdict of a caller for whom less than all will do.

        Args:
            unfinished: The goal need not be reached yet.
            skipped: Steps that were skipped with `step.skip()` may stay untrained.
        """
        if not self.found:
            return NO_RUN
        if self.findings:
            return FAULT
        lacking = not (self.reached or unfinished) or (self.not_trained.skipped_steps and not skipped)
        return CONSISTENT if lacking else COMPLETE

    def exit_code(self, *, unfinished: bool = False, skipped: bool = False) -> int:
        """Return what ``raypack verify`` exits with: 0 complete, 1 fault, 2 no run, 3 consistent so far."""
        return _EXIT_CODES[self.allowing(unfinished=unfinished, skipped=skipped)]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        attempts = [{**asdict(attempt), "options": attempt.options.to_dict()} for attempt in self.attempts]
        return {
            "verdict": self.verdict,
            "ok": self.ok,
            "consistent": self.consistent,
            "checkpoint": self.checkpoint,
            "goal": self.goal.to_dict() if self.goal else None,
            "reached": self.reached,
            "not_trained": asdict(self.not_trained),
            "left_out": list(self.left_out),
            "findings": list(self.findings),
            "remarks": list(self.remarks),
            "attempts": attempts,
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }
