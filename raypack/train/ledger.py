"""The ledger of a run: its attempts and, for each epoch, the receipt of what was trained.

It travels in every checkpoint, so it tells the lineage of the weights that it lies beside: steps
that an attempt computed after its last checkpoint are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from raypack.arguments import integer, shown
from raypack.errors import CheckpointError
from raypack.sampling.receipt import Receipt

_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One stretch of steps trained by one set of workers."""

    number: int
    """Count of starts of the run in this lineage, from 0."""
    world_size: int
    """Data ranks."""
    first_step: int
    """Global index of its first step."""
    steps: int
    """Steps of it that are in the lineage."""

    def __post_init__(self) -> None:
        for f in fields(self):
            low = 1 if f.name == "world_size" else 0
            value = integer(f"attempt.{f.name}", getattr(self, f.name), minimum=low, maximum=_LIMIT)
            object.__setattr__(self, f.name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEntry:
    """What was trained of one epoch."""

    epoch: int
    steps: int
    """Optimizer steps committed in it."""
    receipt: Receipt
    """What the train loops of all ranks received and committed, added up."""

    def __post_init__(self) -> None:
        for name in ("epoch", "steps"):
            value = integer(f"epoch.{name}", getattr(self, name), minimum=0, maximum=_LIMIT)
            object.__setattr__(self, name, value)
        if not isinstance(self.receipt, Receipt):
            raise TypeError(f"epoch.receipt must be a Receipt, got {shown(self.receipt)}")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Attempts and epochs, in order."""

    attempts: tuple[Attempt, ...] = ()
    epochs: tuple[EpochEntry, ...] = ()

    def __post_init__(self) -> None:
        step = 0
        for attempt in self.attempts:
            if attempt.first_step != step:
                raise CheckpointError(
                    f"ledger: attempt {attempt.number} must begin at step {step}, got {attempt.first_step}"
                )
            step += attempt.steps
        numbers = [entry.epoch for entry in self.epochs]
        if numbers != list(range(len(numbers))):
            raise CheckpointError(f"ledger: epochs must be 0, 1, 2, ..., got {shown(numbers)}")
        if step != sum(entry.steps for entry in self.epochs):
            raise CheckpointError(
                f"ledger: the attempts hold {step} steps, the epochs {sum(e.steps for e in self.epochs)}"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole lineage."""
        return sum(entry.steps for entry in self.epochs)

    def extended(self, attempt: Attempt, epochs: list[EpochEntry]) -> Ledger:
        """Return the ledger with a running attempt's present numbers.

        Args:
            attempt: The running attempt; left out while it has no step.
            epochs: Steps and receipts that the attempt adds to each epoch it touched.
        """
        totals = {entry.epoch: entry for entry in self.epochs}
        for entry in epochs:
            known = totals.get(entry.epoch)
            if known is not None:
                entry = replace(known, steps=known.steps + entry.steps, receipt=known.receipt + entry.receipt)
            totals[entry.epoch] = entry
        attempts = self.attempts + ((attempt,) if attempt.steps else ())
        return Ledger(attempts, tuple(totals[key] for key in sorted(totals)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: object) -> Ledger:
        """Check untrusted values and return the ledger.

        Raises:
            CheckpointError: A field is missing, unknown, of a wrong type or out of range.
        """
        record = exact_fields(values, ("attempts", "epochs"), "ledger")
        attempts = [
            Attempt(**exact_fields(item, [f.name for f in fields(Attempt)], "ledger attempt"))
            for item in _items(record["attempts"], "ledger.attempts")
        ]
        epochs = []
        for item in _items(record["epochs"], "ledger.epochs"):
            entry = exact_fields(item, [f.name for f in fields(EpochEntry)], "ledger epoch")
            receipt = exact_fields(entry["receipt"], [f.name for f in fields(Receipt)], "ledger receipt")
            epochs.append(EpochEntry(**{**entry, "receipt": Receipt(**receipt)}))
        return cls(tuple(attempts), tuple(epochs))


def exact_fields(values: object, names: tuple[str, ...] | list[str], what: str) -> dict[str, Any]:
    """Return ``values`` as a dict that holds exactly ``names``.

    Raises:
        CheckpointError: It is no object, or a field is missing or unknown.
    """
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{what} must be an object with the fields {list(names)}, got {shown(values)}")
    if set(values) != set(names):
        missing, unknown = set(names) - set(values), set(values) - set(names)
        raise CheckpointError(f"{what}: missing fields {sorted(missing)}, unknown fields {shown(unknown)}")
    return dict(values)


def _items(values: object, what: str) -> list[Any]:
    if not isinstance(values, (list, tuple)):
        raise CheckpointError(f"{what} must be a list, got {shown(values)}")
    return list(values)
