"""Which attempt trained which steps of which epoch, according to the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from raypack.checkpoint.ledger import Attempt, Ledger


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of one epoch that one attempt trained, one after another."""

    attempt: Attempt
    steps: int


def stretches_of(ledger: Ledger) -> list[list[Stretch]]:
    """Return the stretches of each epoch, in order; attempts and epochs hold the same steps."""
    attempts = iter(ledger.attempts)
    found: list[list[Stretch]] = []
    attempt, left = None, 0
    for entry in ledger.epochs:
        found.append([])
        missing = entry.steps
        while missing:
            if attempt is None or not left:
                attempt = next(attempts)
                left = attempt.steps
            steps = min(missing, left)
            found[-1].append(Stretch(attempt, steps))
            missing, left = missing - steps, left - steps
    return found
