"""The record of a `StepPlanner`: a few numbers, whatever the number of examples or ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from raypack.arguments import choice, integer, optional_integer, shown, text
from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.committed_prefix import CommittedPrefix, read_committed_prefixes
from raypack.batching.steps.step import StepCursor
from raypack.choices import PACKINGS, SHUFFLES
from raypack.errors import SamplerError
from raypack.sampling.states.records import build, check_record, check_version, read_fields

STEP_STATE_VERSION = 1
_LIMIT = 2**62
_NAME = "step planner state"


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
    """How batches are made of the order: ``best_fit`` or ``greedy``."""
    window: int | None
    """Examples of a window of best fit; None under greedy packing."""
    seed: int | None
    """Seed of the order; None is source order."""
    epoch: int
    """Number of the epoch."""
    shuffle: str
    """``full`` or ``block``."""
    cursor: StepCursor = field(default_factory=StepCursor)
    """The boundary after the last committed step."""
    repacked: tuple[CommittedPrefix, ...] = ()
    """What was committed of the cursor's window under other options, in order."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        check_version(_NAME, self.version, STEP_STATE_VERSION)
        text("source_id", self.source_id)
        text("lengths_digest", self.lengths_digest)
        text("order_digest", self.order_digest)
        put(self, "source_length", integer("source_length", self.source_length, minimum=0, maximum=_LIMIT))
        put(self, "batches_per_step", integer("batches_per_step", self.batches_per_step, minimum=1))
        put(self, "window", optional_integer("window", self.window, minimum=1, maximum=_LIMIT))
        put(self, "seed", optional_integer("seed", self.seed, minimum=0, maximum=2**64 - 1))
        put(self, "epoch", integer("epoch", self.epoch, minimum=0, maximum=2**64 - 1))
        choice("packing", self.packing, PACKINGS)
        choice("shuffle", self.shuffle, SHUFFLES)
        check_record("options", self.options, TokenBatchOptions)
        check_record("cursor", self.cursor, StepCursor)
        self._check_cursor()

    def _check_cursor(self) -> None:
        cursor, window, total = self.cursor, self.window, self.source_length
        if (self.packing == "greedy") != (window is None):
            raise SamplerError(
                f"window must be given with best_fit packing and only there, got {shown(window)} "
                f"with {self.packing}"
            )
        if cursor.position > total:
            raise SamplerError(
                f"cursor.position must be at most source_length {total}, got {cursor.position}"
            )
        if window is None or cursor.position == total:
            if cursor.batches or self.repacked:
                raise SamplerError(
                    "cursor.batches and repacked must be empty but inside a window of best fit, got "
                    f"{cursor.batches} and {len(self.repacked)} records"
                )
        elif cursor.position % window:
            raise SamplerError(
                f"cursor.position must be the first of a window of {window}, got {cursor.position}"
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
        values["repacked"] = [part.to_dict() for part in self.repacked]
        return values

    @classmethod
    def from_dict(cls, values: object) -> StepPlannerState:
        """Check untrusted values and return the record.

        Raises:
            SamplerError: A field is missing, unknown, of a wrong type or out of range.
        """
        record = read_fields(_NAME, values, tuple(f.name for f in fields(cls)))
        cursor = read_fields("cursor", record["cursor"], tuple(f.name for f in fields(StepCursor)))
        record["options"] = TokenBatchOptions.from_dict(record["options"])
        record["cursor"] = build("cursor", StepCursor, cursor)
        record["repacked"] = read_committed_prefixes(record["repacked"])
        return build(_NAME, cls, record)
