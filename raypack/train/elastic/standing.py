"""A loader's state between two steps: what a report writes, and what a reopened loader resumes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raypack.checkpoint.ledger import Attempt, EpochEntry, Ledger
from raypack.checkpoint.run_state import state_values
from raypack.checkpoint.sealing import digest_of
from raypack.train.elastic.data_ranks import OTHER_STATE, by_data_rank, entries_by_data_rank
from raypack.train.elastic.worker_context import WorkerContext
from raypack.train.recipe import PackedData


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One rank's part of the run's state after its last commit."""

    worker: WorkerContext
    recipe: PackedData
    source: dict[str, Any]
    """The source's summary."""
    deal: str
    """``global`` or ``rank``."""
    batches_per_step: int
    shared: Any
    """JSON values that must be equal on all ranks."""
    plan: dict[str, Any]
    """What a checkpoint keeps once."""
    own: dict[str, Any] | None
    """What a checkpoint keeps of each data rank, or None."""
    ledger: Ledger
    """What the loader began with."""
    epochs: list[EpochEntry]
    """What this rank has added to it."""
    reported: int
    """Steps that a checkpoint holds."""

    @property
    def steps(self) -> int:
        """Steps that this loader has committed."""
        return sum(entry.steps for entry in self.epochs)

    @property
    def steps_done(self) -> int:
        """Steps committed in this lineage."""
        return self.ledger.steps + self.steps

    def report_payload(self) -> dict[str, Any]:
        """Return what this rank sends the others: what all share, what its peers share, its receipts."""
        return {
            "step": self.steps_done,
            "digest": digest_of([self.shared, self.ledger.to_dict()]),
            "refused": [[e.refused.retries, e.refused.steps, [*e.refused.numbers]] for e in self.epochs],
            "own": digest_of(self.own),
            "epochs": self.epochs,
        }

    def run_state(self, report_id: str, payloads: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the run's state as JSON values, with the receipts of all data ranks added up.

        Args:
            report_id: The report's ID.
            payloads: What `report_payload` returned on each process, by rank.

        Raises:
            LoaderError: Peers of one data rank have trained different examples, or differ in their state.
        """
        attempt = Attempt(
            number=self.ledger.attempts[-1].number + 1 if self.ledger.attempts else 0,
            world_size=self.worker.data_world_size,
            first_step=self.ledger.steps,
            steps=self.steps,
            batches_per_step=self.batches_per_step,
            options=self.recipe.options,
        )
        by_data_rank(self.worker, [payload["own"] for payload in payloads], OTHER_STATE)
        trained = entries_by_data_rank(self.worker, [payload["epochs"] for payload in payloads])
        epochs = [EpochEntry.over_ranks(column) for column in zip(*trained, strict=True)]
        return state_values(
            deal=self.deal,
            report_id=report_id,
            world_size=self.worker.data_world_size,
            source_path=self.recipe.source_path,
            source=self.source,
            goal=self.recipe.goal,
            plan=self.plan,
            ledger=self.ledger.extended(attempt, epochs),
        )
