"""What a rank's token batch sampler saves: its sampler's record, its limits and its table's digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from raypack.arguments import text
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchOptions
from raypack.errors import SamplerError
from raypack.sampling.states.rank_state import SamplerState
from raypack.sampling.states.records import build, check_record, check_version, read_fields

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatchState:
    """One rank's committed place in an epoch of token batches. It checks itself when made.

    Attributes:
        version: Format of the record, 1.
        sampler: The committed order.
        lengths_digest: Hash of the length table, hex; the table itself is asked for when restoring.
        options: The limits of a batch.
    """

    RECORD: ClassVar[str] = "token batch state"

    version: int = STATE_VERSION
    sampler: SamplerState
    lengths_digest: str
    options: TokenBatchOptions

    def __post_init__(self) -> None:
        """Check the record."""
        self.validate()

    def validate(self) -> None:
        """Check the sampler's record, then this one's own fields.

        Raises:
            TypeError: a field has another type.
            SamplerError: a field breaks its rule.
        """
        check_record("sampler", self.sampler, SamplerState)
        self.sampler.validate()
        check_version(self.RECORD, self.version, STATE_VERSION)
        text("lengths_digest", self.lengths_digest)
        check_record("options", self.options, TokenBatchOptions)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a JSON-safe dict."""
        return {
            "version": self.version,
            "sampler": self.sampler.to_dict(),
            "lengths_digest": self.lengths_digest,
            "options": self.options.to_dict(),
        }

    @classmethod
    def from_dict(cls, value: object) -> TokenBatchState:
        """Read what `to_dict` gave.

        Raises:
            SamplerError: ``value`` is anything else.
        """
        fields = read_fields(cls.RECORD, value, ("version", "sampler", "lengths_digest", "options"))
        fields["sampler"] = SamplerState.from_dict(fields["sampler"])
        fields["options"] = TokenBatchOptions.from_dict(fields["options"])
        return build(cls.RECORD, cls, fields)


def check_table(table: LengthTable, source_length: int, digest: str | None = None) -> None:
    """Refuse a length table of another source.

    Args:
        table: The table at hand.
        source_length: Examples in the source.
        digest: The digest that a record holds; None where there is no record.

    Raises:
        SamplerError: the size or the digest differs.
    """
    if len(table) != source_length:
        raise SamplerError(
            f"lengths must have one entry per example of the source, {source_length}, got {len(table)}"
        )
    if digest is not None and table.digest != digest:
        raise SamplerError(
            f"lengths must be the table that the record was saved with, digest {digest}, got {table.digest}; "
            "open the same source"
        )
