"""The record of a `StepPlanner`: a few numbers, whatever the number of examples or ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from raypack.arguments import choice, integer, optional_integer, shown, text
from raypack.batching.options import TokenBatchOptions
from raypack.batching.step_plan import StepCursor
from raypack.errors import SamplerError

PACKINGS = ("greedy",)
SHUFFLES = ("full", "block")
STEP_STATE_VERSION = 1
_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlannerState:
    """The committed continuation of a `StepPlanner`; independent of the number of ranks."""

    version: int = STEP_STATE_VERSION
    """Format of the record, 1."""
    source_id: str
    """The caller's name of the immutable source."""
    source_length: int
    """Examples of the source."""
    lengths_digest: str
    """Digest of the length table."""
    order_digest: str
    """Digest of the epoch's order; an order that is computed otherwise is refused by it."""
    options: TokenBatchOptions
    """Budget and layout of a batch."""
    batches_per_step: int
    """Batches of every step but an epoch's last."""
    packing: str
    """How batches are made of the order: ``greedy``."""
    seed: int | None
    """Seed of the order; None is source order."""
    epoch: int
    """Number of the epoch."""
    shuffle: str
    """``full`` or ``block``."""
    cursor: StepCursor = field(default_factory=StepCursor)
    """The boundary after the last committed step."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        if integer("version", self.version) != STEP_STATE_VERSION:
            raise SamplerError(f"version must be {STEP_STATE_VERSION}, got {shown(self.version)}")
        text("source_id", self.source_id)
        text("lengths_digest", self.lengths_digest)
        text("order_digest", self.order_digest)
        put(self, "source_length", integer("source_length", self.source_length, minimum=0, maximum=_LIMIT))
        put(self, "batches_per_step", integer("batches_per_step", self.batches_per_step, minimum=1))
        put(self, "seed", optional_integer("seed", self.seed, minimum=0, maximum=2**64 - 1))
        put(self, "epoch", integer("epoch", self.epoch, minimum=0, maximum=2**64 - 1))
        choice("packing", self.packing, PACKINGS)
        choice("shuffle", self.shuffle, SHUFFLES)
        if not isinstance(self.options, TokenBatchOptions):
            raise TypeError(f"options must be TokenBatchOptions, got {type(self.options).__name__}")
        if not isinstance(self.cursor, StepCursor):
            raise TypeError(f"cursor must be a StepCursor, got {type(self.cursor).__name__}")
        if self.cursor.position > self.source_length:
            raise SamplerError(
                f"cursor.position must be at most source_length {self.source_length}, "
                f"got {self.cursor.position}"
            )

    @property
    def steps(self) -> int:
        """Steps of the epoch that are committed."""
        return self.cursor.steps

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["options"] = self.options.to_dict()
        values["cursor"] = asdict(self.cursor)
        return values

    @classmethod
    def from_dict(cls, values: object) -> StepPlannerState:
        """Check untrusted values and return the record.

        Raises:
            SamplerError: A field is missing, unknown, of a wrong type or out of range.
        """
        record = _fields_of(cls, values, "step planner state")
        cursor = _fields_of(StepCursor, record["cursor"], "cursor")
        try:
            options = TokenBatchOptions.from_dict(record["options"])
            return cls(**{**record, "options": options, "cursor": StepCursor(**cursor)})
        except TypeError as error:
            raise SamplerError(f"step planner state: {error}") from error


def _fields_of(cls: type, values: object, what: str) -> dict[str, Any]:
    names = {f.name for f in fields(cls)}
    if not isinstance(values, Mapping):
        raise SamplerError(f"{what} must be an object with the fields {sorted(names)}, got {shown(values)}")
    if set(values) != names:
        missing, unknown = sorted(names - set(values)), sorted(map(str, set(values) - names))
        raise SamplerError(f"{what}: missing fields {missing}, unknown fields {shown(unknown)}")
    return dict(values)
