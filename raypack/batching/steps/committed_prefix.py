"""The committed prefix of a window whose rest was repacked under other options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raypack.arguments import integer, shown
from raypack.batching.options import TokenBatchOptions
from raypack.errors import SamplerError
from raypack.sampling.states.records import build, check_record, read_fields

MOST_REPACKED = 64
"""How often the rest of one window may be packed anew."""


@dataclass(frozen=True, slots=True)
class CommittedPrefix:
    """The first batches of a window, or of what was left of it, committed under other options."""

    options: TokenBatchOptions
    """The options that they were packed under."""
    batches: int
    """How many were committed."""

    def __post_init__(self) -> None:
        check_record("repacked.options", self.options, TokenBatchOptions)
        batches = integer("repacked.batches", self.batches, minimum=1, maximum=2**62)
        object.__setattr__(self, "batches", batches)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return {"options": self.options.to_dict(), "batches": self.batches}

    @classmethod
    def from_dict(cls, value: object) -> CommittedPrefix:
        """Check untrusted values and return the record.

        Raises:
            SamplerError: A field is missing, unknown, of a wrong type or out of range.
        """
        record = read_fields("repacked", value, ("options", "batches"))
        record["options"] = TokenBatchOptions.from_dict(record["options"])
        return build("repacked", cls, record)


def read_committed_prefixes(value: object) -> tuple[CommittedPrefix, ...]:
    """Check an untrusted list of records and return them.

    Raises:
        SamplerError: It is no list of at most 64 records.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or len(value) > MOST_REPACKED:
        raise SamplerError(f"repacked must be a list of at most {MOST_REPACKED} records, got {shown(value)}")
    return tuple(CommittedPrefix.from_dict(part) for part in value)
