"""The rest of an epoch of token batches, independent of the number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from raypack.arguments import shown, text
from raypack.batching.options import TokenBatchOptions
from raypack.batching.rank.state import TokenBatchState
from raypack.errors import SamplerError
from raypack.sampling.states.consolidated import ConsolidatedSamplerState
from raypack.sampling.states.records import build, check_record, check_version, read_fields

CONSOLIDATED_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidatedTokenBatchState:
    """The examples that remain, with the limits and the length table's digest. It checks itself when made.

    Attributes:
        version: Format of the record, 1.
        sampler: What remains of the order.
        lengths_digest: Hash of the length table, hex.
        options: The limits of a batch.
    """

    RECORD: ClassVar[str] = "consolidated token batch state"

    version: int = CONSOLIDATED_VERSION
    sampler: ConsolidatedSamplerState
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
        check_record("sampler", self.sampler, ConsolidatedSamplerState)
        self.sampler.validate()
        check_version(self.RECORD, self.version, CONSOLIDATED_VERSION)
        text("lengths_digest", self.lengths_digest)
        check_record("options", self.options, TokenBatchOptions)

    @classmethod
    def consolidate(cls, states: Iterable[TokenBatchState]) -> ConsolidatedTokenBatchState:
        """Put the records of all ranks together; see `ConsolidatedSamplerState.consolidate`.

        Args:
            states: One record or more of every data rank, all saved at one step.

        Raises:
            TypeError: something else is among the states.
            SamplerError: a record is invalid, or ranks differ in table, options or sampler.
        """
        records = list(states)
        if not records:
            raise SamplerError("states must hold the record of every data rank, got none")
        for state in records:
            check_record("states", state, TokenBatchState)
            state.validate()
            _check_agreement(records[0], state)
        return cls(
            sampler=ConsolidatedSamplerState.consolidate(state.sampler for state in records),
            lengths_digest=records[0].lengths_digest,
            options=records[0].options,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a JSON-safe dict."""
        return {
            "version": self.version,
            "sampler": self.sampler.to_dict(),
            "lengths_digest": self.lengths_digest,
            "options": self.options.to_dict(),
        }

    @classmethod
    def from_dict(cls, value: object) -> ConsolidatedTokenBatchState:
        """Read what `to_dict` gave.

        Raises:
            SamplerError: ``value`` is anything else.
        """
        fields = read_fields(cls.RECORD, value, ("version", "sampler", "lengths_digest", "options"))
        fields["sampler"] = ConsolidatedSamplerState.from_dict(fields["sampler"])
        fields["options"] = TokenBatchOptions.from_dict(fields["options"])
        return build(cls.RECORD, cls, fields)


def _check_agreement(first: TokenBatchState, state: TokenBatchState) -> None:
    for name in ("lengths_digest", "options"):
        mine, other = getattr(first, name), getattr(state, name)
        if mine != other:
            raise SamplerError(
                f"states must agree in {name}, got {shown(mine)} on rank {first.sampler.rank} and "
                f"{shown(other)} on rank {state.sampler.rank}; take all records from one run"
            )
