"""The loader of one train worker: optimizer steps in, commits out, restored at any world size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import ray
import torch

from raypack.actors.rendezvous_client import RendezvousClient
from raypack.checkpoint.ledger import Ledger
from raypack.collate import PackedBatch
from raypack.collate.layout.assemble import fields_of
from raypack.collate.layout.batch_shape import BatchShape
from raypack.collate.layout.flat import parse_flat
from raypack.collate.transfer import DevicePrefetcher, streams_of
from raypack.data.stream.blocks import StreamRow
from raypack.data.stream.rank_stream import Stream
from raypack.data.stream.reader import ReadSpec
from raypack.errors import LoaderError
from raypack.source import ArrowSource
from raypack.train.deals.deal import Deal, StepFacts
from raypack.train.deals.rows import Rows, plan_of
from raypack.train.elastic.stall_monitor import StallMonitor
from raypack.train.elastic.standing import Standing
from raypack.train.elastic.worker_context import WorkerContext
from raypack.train.receipt_accumulator import ReceiptAccumulator
from raypack.train.recipe import Pace, PackedData
from raypack.train.reporting.saving import Saver
from raypack.train.reporting.unsaved import note, note_start, warn_of_unsaved
from raypack.train.step import Step


class PackedLoader:
    """Gives this rank's part of each optimizer step; made by `get_loader`, used as a context.

    Iterate once: ``for step in loader``. After a ``break``, a second loop continues where the first ended.
    """

    def __init__(
        self,
        recipe: PackedData,
        *,
        name: str | None,
        worker: WorkerContext,
        source: ArrowSource,
        deal: Deal,
        ledger: Ledger,
        node_planner: Any,
        rendezvous: RendezvousClient,
        device: torch.device,
        pace: Pace,
        reported: int | None = None,
        on_close: Callable[[Standing], None] | None = None,
    ) -> None:
        self._recipe, self._name, self._worker, self._source = recipe, name, worker, source
        self._deal, self._ledger = deal, ledger
        self._node_planner, self._rendezvous, self._device = node_planner, rendezvous, device
        self._pace, self._rows = pace, Rows(iter(()))
        self._last_advanced = self._committed_batches = self._local_tokens = 0
        self._first_step = ledger.steps
        self._reported = ledger.steps if reported is None else reported
        self._on_close = on_close
        self._trained = ReceiptAccumulator(source.fingerprint)
        self._open_step: Step | None = None
        self._uses_sync: bool | None = None
        self._stream: Stream | None = None
        self._shape = BatchShape.parse(layout=recipe.options.layout)
        self._batches = DevicePrefetcher(self._to_batch, streams_of(device))
        self._saver = Saver(rendezvous)
        self._closed = False
        note_start(worker, name, self._reported)

    # -- what it is ------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """Its name in checkpoints, where a run has several."""
        return self._name

    @property
    def worker(self) -> WorkerContext:
        """This worker's place in the run: its ranks, node and attempt."""
        return self._worker

    @property
    def rendezvous(self) -> RendezvousClient:
        """This rank's side of the attempt's rendezvous."""
        return self._rendezvous

    @property
    def source(self) -> ArrowSource:
        """The source that is trained."""
        return self._source

    @property
    def batches_per_step(self) -> int:
        """Batches of an optimizer step over all ranks; the last step of an epoch may have fewer."""
        return self._deal.batches_per_step

    def count_steps(self) -> int:
        """Return the optimizer steps of the whole run: those committed, and what is left as planned now.

        Equal to `PackedData.count_steps` unless budget or ``batches_per_step`` has changed on the way.
        """
        return self._deal.count_steps(self._recipe, self._source, self._ledger.attempts, self.steps_done)

    @property
    def steps_done(self) -> int:
        """Optimizer steps committed in this lineage, through all epochs and attempts."""
        return self._first_step + self._trained.steps

    @property
    def tokens_done(self) -> int:
        """Tokens committed in this lineage, of skipped steps too, so that it reaches `tokens_total`."""
        return sum(entry.tokens for entry in self._ledger.epochs) + self._local_tokens

    @property
    def tokens_total(self) -> int:
        """Tokens of the whole run: those of the source times its epochs."""
        return self._source.manifest.tokens * self._recipe.epochs

    @property
    def progress(self) -> float:
        """Part of the run that is committed, 0.0 to 1.0, in tokens, or in steps of ``max_steps``.

        The same on every rank and at any world size, so that a learning-rate schedule can follow it.
        """
        tokens = self.tokens_done / self.tokens_total if self.tokens_total else 1.0
        steps = self.steps_done / self._recipe.max_steps if self._recipe.max_steps else 0.0
        return min(1.0, max(tokens, steps))

    # -- iteration -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Step]:
        self._check_open("iterated")
        if self._stream is None:
            self._start_stream()
        while True:
            self._check_open("iterated")
            self._require_commit("the next step was asked for")
            self._saver.boundary(self.steps_done)
            if self._recipe.max_steps is not None and self.steps_done >= self._recipe.max_steps:
                return
            facts = self._deal.begin(self._rows)
            if facts is None:
                return
            self._open_step = self._step_of(facts)
            yield self._open_step

    def _start_stream(self) -> None:
        spec = ReadSpec(
            source_path=self._recipe.source_path,
            fingerprint=self._source.fingerprint,
            planner=self._node_planner,
            rank=self._worker.rank,
            block_rows=self._pace.block_rows,
        )
        self._stream = Stream(
            spec,
            backend=self._recipe.backend,
            node_id=self._worker.node_id,
            on_wait=StallMonitor(self._worker, self._node_planner, self._advance),
        )
        self._rows = Rows(iter(self._stream), self._stream.has_row)

    def _step_of(self, facts: StepFacts) -> Step:
        return Step(
            index=self.steps_done,
            world_size=self._worker.data_world_size,
            facts=facts,
            rows=self._rows,
            batches=self._batches,
            on_commit=self._commit,
            uses_sync=self._uses_sync,
        )

    def _to_batch(self, row: StreamRow) -> PackedBatch:
        documents = parse_flat(row.input_ids, row.lengths, row.labels)
        return PackedBatch(**fields_of(documents, self._shape, row.indices, plan_of(row), self._device))

    # -- commit and state ------------------------------------------------------------------------

    def _commit(self, step: Step) -> None:
        trained = step.trained()
        self._deal.commit(step.facts)
        self._trained.add(trained)
        self._committed_batches += step.facts.rows
        self._local_tokens += step.real_tokens
        self._uses_sync = step.uses_sync
        self._open_step = None
        if self._committed_batches >= self._last_advanced + self._pace.advance_every:
            self._advance()

    def _advance(self) -> None:
        """Send the node's planner what is committed; an absolute number, so it may be sent again."""
        deal = self._deal
        self._last_advanced = self._committed_batches
        self._node_planner.advance.remote(self._worker.rank, self._committed_batches, deal.epoch, deal.cursor)

    def report_payload(self) -> dict[str, Any]:
        """Return this rank's part of a report: what all ranks share, what its peers share, its receipts.

        Raises:
            LoaderError: A step was taken and not committed, or the loader is closed.
        """
        self._check_open("reported")
        self._require_commit("report was called")
        return self.standing().report_payload()

    def remember(self, report: Callable[[dict[str, Any]], None] | None) -> None:
        """Note that a report was made, and keep how the train function makes one; see `Saver`."""
        self._reported = self.steps_done
        note(self._worker, self._name, self._reported)
        self._saver.remember(report)

    def own_record(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps of this data rank alone; None under the global deal."""
        return self._deal.own()

    def run_state(self, report_id: str, payloads: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the run's state as JSON values, with the receipts of all data ranks added up.

        Args:
            report_id: The report's ID.
            payloads: What `report_payload` returned on each process, by rank.

        Raises:
            LoaderError: Peers of one data rank have trained different examples, or differ in their state.
        """
        return self.standing().run_state(report_id, payloads)

    def standing(self) -> Standing:
        """Return this rank's state after its last commit."""
        deal = self._deal
        return Standing(
            worker=self._worker,
            recipe=self._recipe,
            source=self._source.summary(),
            deal=deal.kind,
            batches_per_step=deal.batches_per_step,
            shared=deal.shared(),
            plan=deal.plan(),
            own=deal.own(),
            ledger=self._ledger,
            epochs=self._trained.entries(),
            reported=self._reported,
        )

    def _require_commit(self, what: str) -> None:
        step = self._open_step
        if step is not None:
            raise LoaderError(
                f"step {step.index} is not committed, but {what}: call step.commit() after optimizer.step()"
            )

    # -- end -------------------------------------------------------------------------------------

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise LoaderError(f"the loader is closed and cannot be {what}: stay inside its 'with' block")

    def close(self) -> None:
        """End the stream; what it read ahead is dropped and stays uncommitted."""
        if not self._closed:
            self._closed = True
            note(self._worker, self._name, self._reported, self.steps_done)
            self._saver.close()
            if self._stream is not None:
                self._stream.close()
            elif ray.is_initialized():
                self._node_planner.leave.remote(self._worker.rank)
            self._rendezvous.leave()
            if self._on_close is not None:
                self._on_close(self.standing())

    def __enter__(self) -> PackedLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            warn_of_unsaved(self._worker, self.steps_done - self._reported)
        self.close()
