"""The ledger of a run: its attempts and, for each epoch, the receipt of what was trained.

It is part of every checkpoint, so it describes the lineage of the weights saved with it: steps
that an attempt computed after its last checkpoint are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from raypack.arguments import integer, shown
from raypack.batching.options import TokenBatchOptions
from raypack.errors import CheckpointError
from raypack.sampling.receipt import Receipt
from raypack.sampling.states.records import check_record

MOST_NUMBERS = 256
_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One stretch of steps trained by one set of workers under one budget."""

    number: int
    """Index of the attempt in this lineage, from 0."""
    world_size: int
    """Data ranks."""
    first_step: int
    """Global index of its first step."""
    steps: int
    """Steps of it that are in the lineage."""
    batches_per_step: int
    """Batches of a step over all ranks."""
    options: TokenBatchOptions
    """Budget and layout of a batch."""

    def __post_init__(self) -> None:
        for name in ("number", "world_size", "first_step", "steps", "batches_per_step"):
            low = 1 if name in ("world_size", "batches_per_step") else 0
            value = integer(f"attempt.{name}", getattr(self, name), minimum=low, maximum=_LIMIT)
            object.__setattr__(self, name, value)
        check_record("attempt.options", self.options, TokenBatchOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Steps of an epoch that were retried or skipped."""

    retries: int = 0
    """Calls of `Step.retry`."""
    steps: int = 0
    """Steps that were skipped."""
    numbers: tuple[int, ...] = ()
    """Global indices of the skipped steps, the first 256 of them."""
    receipt: Receipt = field(default_factory=Receipt)
    """What the skipped steps held."""

    def __post_init__(self) -> None:
        for name in ("retries", "steps"):
            value = integer(f"refused.{name}", getattr(self, name), minimum=0, maximum=_LIMIT)
            object.__setattr__(self, name, value)
        numbers = tuple(integer("refused.numbers", n, minimum=0, maximum=_LIMIT) for n in self.numbers)
        object.__setattr__(self, "numbers", numbers)
        if len(numbers) != min(self.steps, MOST_NUMBERS):
            raise CheckpointError(
                f"refused.numbers must name the first {MOST_NUMBERS} of {self.steps} skipped steps, got "
                f"{len(numbers)}"
            )
        check_record("refused.receipt", self.receipt, Receipt)

    def __add__(self, other: Refused) -> Refused:
        return Refused(
            retries=self.retries + other.retries,
            steps=self.steps + other.steps,
            numbers=(self.numbers + other.numbers)[:MOST_NUMBERS],
            receipt=self.receipt + other.receipt,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEntry:
    """What was trained of one epoch."""

    epoch: int
    steps: int = 0
    """Optimizer steps committed in it, skipped ones included."""
    receipt: Receipt = field(default_factory=Receipt)
    """What the train loops of all ranks received and committed, added up."""
    refused: Refused = field(default_factory=Refused)
    """Steps that were retried or skipped."""
    batches: int = 0
    """Batches with documents that were committed, over all data ranks, without those of skipped steps."""
    observed: int = 0
    """Those of them that were seen to be trained: a gradient reached their loss."""

    def __post_init__(self) -> None:
        for name in ("epoch", "steps", "batches", "observed"):
            value = integer(f"epoch.{name}", getattr(self, name), minimum=0, maximum=_LIMIT)
            object.__setattr__(self, name, value)
        if self.observed > self.batches:
            raise CheckpointError(
                f"epoch.observed must be at most {self.batches}, the batches, got {self.observed}"
            )
        check_record("epoch.receipt", self.receipt, Receipt)
        check_record("epoch.refused", self.refused, Refused)

    @property
    def tokens(self) -> int:
        """Tokens of its committed steps, skipped ones included."""
        return self.receipt.tokens + self.refused.receipt.tokens

    def __add__(self, other: EpochEntry) -> EpochEntry:
        return EpochEntry(
            epoch=self.epoch,
            steps=self.steps + other.steps,
            receipt=self.receipt + other.receipt,
            refused=self.refused + other.refused,
            batches=self.batches + other.batches,
            observed=self.observed + other.observed,
        )

    @classmethod
    def over_ranks(cls, entries: Sequence[EpochEntry]) -> EpochEntry:
        """Return the entry of all data ranks: steps are common to them, receipts and batches add up."""
        return replace(
            entries[0],
            receipt=sum((entry.receipt for entry in entries), Receipt()),
            batches=sum(entry.batches for entry in entries),
            observed=sum(entry.observed for entry in entries),
            refused=replace(
                entries[0].refused, receipt=sum((entry.refused.receipt for entry in entries), Receipt())
            ),
        )


@dataclass(frozen=True, slots=True)
class Ledger:
    """Attempts and epochs, in order."""

    attempts: tuple[Attempt, ...] = ()
    epochs: tuple[EpochEntry, ...] = ()

    def __post_init__(self) -> None:
        step = 0
        for number, attempt in enumerate(self.attempts):
            if attempt.number != number or not attempt.steps:
                raise CheckpointError(
                    f"ledger: attempts must be 0, 1, 2, ... with a step or more each, got number "
                    f"{attempt.number} with {attempt.steps} steps as the {number + 1}th"
                )
            if attempt.first_step != step:
                raise CheckpointError(
                    f"ledger: attempt {attempt.number} must begin at step {step}, got {attempt.first_step}"
                )
            step += attempt.steps
        numbers = [entry.epoch for entry in self.epochs]
        if numbers != list(range(len(numbers))) or not all(entry.steps for entry in self.epochs):
            steps = [entry.steps for entry in self.epochs]
            raise CheckpointError(
                f"ledger: epochs must be 0, 1, 2, ..., with a step or more each, got {shown(numbers)} with "
                f"{shown(steps)} steps"
            )
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
            totals[entry.epoch] = entry if known is None else known + entry
        attempts = self.attempts + ((attempt,) if attempt.steps else ())
        return Ledger(attempts, tuple(totals[key] for key in sorted(totals)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        attempts = [{**asdict(attempt), "options": attempt.options.to_dict()} for attempt in self.attempts]
        return {"attempts": attempts, "epochs": [asdict(entry) for entry in self.epochs]}

    @classmethod
    def from_dict(cls, values: object) -> Ledger:
        """Check untrusted values and return the ledger.

        Raises:
            CheckpointError: A field is missing, unknown, of a wrong type or out of range.
        """
        record = exact_fields(values, ("attempts", "epochs"), "ledger")
        attempts = tuple(map(_attempt, _items(record["attempts"], "ledger.attempts")))
        return cls(attempts, tuple(map(_epoch, _items(record["epochs"], "ledger.epochs"))))


def _attempt(values: object) -> Attempt:
    record = _fields_of(Attempt, values, "ledger attempt")
    return Attempt(**{**record, "options": TokenBatchOptions.from_dict(record["options"])})


def _epoch(values: object) -> EpochEntry:
    entry = _fields_of(EpochEntry, values, "ledger epoch")
    refused = _fields_of(Refused, entry["refused"], "ledger refused")
    refused["numbers"] = tuple(_items(refused["numbers"], "refused.numbers"))
    for part in (entry, refused):
        part["receipt"] = Receipt(**_fields_of(Receipt, part["receipt"], "ledger receipt"))
    return EpochEntry(**{**entry, "refused": Refused(**refused)})


def _fields_of(kind: Any, values: object, what: str) -> dict[str, Any]:
    return exact_fields(values, [f.name for f in fields(kind)], what)


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
