"""The plan in a checkpoint under the rank deal, combined from the records of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raypack.arguments import integer, shown
from raypack.batching.options import TokenBatchOptions
from raypack.batching.rank.consolidated import ConsolidatedTokenBatchState
from raypack.batching.rank.state import TokenBatchState
from raypack.checkpoint.ledger import exact_fields
from raypack.checkpoint.rank_bounds import MOST_POSITIONS, check_skew
from raypack.errors import CheckpointError

_FIELDS = ["epoch", "steps", "batches_per_step"]
_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What remains of the epoch, for any number of ranks to go on with."""

    consolidated: ConsolidatedTokenBatchState
    steps: int
    """Steps of the epoch that all ranks have trained."""
    batches_per_step: int
    """Batches of a step over all ranks, as the run records it."""

    @property
    def source_id(self) -> str:
        """Fingerprint of the source."""
        return self.consolidated.sampler.source_id

    @property
    def source_length(self) -> int:
        """Examples of the source."""
        return self.consolidated.sampler.source_length

    @property
    def lengths_digest(self) -> str:
        """Digest of the source's length table."""
        return self.consolidated.lengths_digest

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self.consolidated.sampler.epoch

    @property
    def options(self) -> TokenBatchOptions:
        """Budget and layout of a batch."""
        return self.consolidated.options

    @property
    def packing(self) -> str:
        """How batches are made: greedy, the rule of the token batch sampler."""
        return "greedy"

    @property
    def window(self) -> int | None:
        """None: greedy packing has no windows."""
        return None

    @property
    def seed(self) -> int | None:
        """Seed of the order."""
        return self.consolidated.sampler.seed

    @property
    def shuffle(self) -> str:
        """Kind of the order."""
        return self.consolidated.sampler.shuffle

    @classmethod
    def of(cls, values: object, states: list[TokenBatchState], most: int = MOST_POSITIONS) -> RankPlan:
        """Check the run's values against the records of its ranks, and put those together.

        Args:
            values: What the run's state holds of the plan.
            states: The records of all ranks.
            most: Positions that may be left between the ranks; see `check_skew`.

        Raises:
            CheckpointError: Values are no plan, or contradict the records.
            SamplerError: The records contradict each other.
        """
        record = exact_fields(values, _FIELDS, "plan")
        check_skew(states, most)
        consolidated = ConsolidatedTokenBatchState.consolidate(states)
        if record["epoch"] != consolidated.sampler.epoch:
            raise CheckpointError(
                f"plan: epoch must be {consolidated.sampler.epoch}, that of the ranks; got "
                f"{shown(record['epoch'])}"
            )
        return cls(
            consolidated=consolidated,
            steps=integer("plan.steps", record["steps"], minimum=0, maximum=_LIMIT, error=CheckpointError),
            batches_per_step=integer(
                "plan.batches_per_step",
                record["batches_per_step"],
                minimum=1,
                maximum=_LIMIT,
                error=CheckpointError,
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what the run's state holds of it; the ranks' records lie beside."""
        return {"epoch": self.epoch, "steps": self.steps, "batches_per_step": self.batches_per_step}
