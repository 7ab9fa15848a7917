"""One optimizer step in the train loop: its micro-batches, its loss, its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from raypack.arguments import type_name
from raypack.collate import PackedBatch
from raypack.collate.loss import next_token_loss_sum
from raypack.collate.transfer import DevicePrefetcher
from raypack.data.stream.blocks import StreamRow
from raypack.errors import LoaderError, StreamError
from raypack.train.deals.deal import StepFacts
from raypack.train.deals.rows import EMPTY_ROW, Rows
from raypack.train.receipt_accumulator import TrainedBatch, TrainedStep
from raypack.train.step_try import StepTry


class Step:
    """An optimizer step of this rank; made by the loader.

    Iterating gives this rank's micro-batches on its device, equally many on every rank; the last may
    be empty. All of them must be taken before `commit`.
    """

    def __init__(
        self,
        *,
        index: int,
        world_size: int,
        facts: StepFacts,
        rows: Rows,
        batches: DevicePrefetcher[StreamRow, PackedBatch],
        on_commit: Callable[[Step], None],
        uses_sync: bool | None = None,
    ) -> None:
        self._index = index
        self._world_size = world_size
        self._facts = facts
        self._rows = rows
        self._batches = batches
        self._on_commit = on_commit
        self._taken: list[StreamRow] = []
        self._retries = 0
        self._skipped = False
        self._uses_sync = uses_sync
        self._try = StepTry(index, self.micro_batches)
        self._committed = False

    @property
    def index(self) -> int:
        """Number of the step in the run, through all epochs, from 0."""
        return self._index

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._facts.epoch

    @property
    def index_in_epoch(self) -> int:
        """Number of the step in its epoch."""
        return self._facts.step

    @property
    def micro_batches(self) -> int:
        """Micro-batches of this step on every rank."""
        return self._facts.micros

    @property
    def batches(self) -> int:
        """Batches of this step over all ranks, empty ones not counted."""
        return self._facts.batches

    @property
    def real_tokens(self) -> int:
        """Tokens of this step over all ranks."""
        return self._facts.tokens

    @property
    def supervised_tokens(self) -> int:
        """Label tokens of this step over all ranks, known before it is trained."""
        return self._facts.supervised

    @property
    def imbalance(self) -> float:
        """The greatest attention cost of a rank in this step over the mean of all, 1.0 is even.

        NaN with ``deal="rank"``, where no rank knows what the others train.
        """
        return self._facts.imbalance

    @property
    def loss_scale(self) -> float:
        """The factor on a rank's summed loss: world size / supervised tokens of the step on all ranks.

        DDP and FSDP2 average gradients over ranks: with this factor the result is the gradient of the
        mean loss over the step's supervised tokens of all ranks. 0.0 where nothing is supervised.
        """
        return self._world_size / self.supervised_tokens if self.supervised_tokens else 0.0

    @property
    def committed(self) -> bool:
        """True once the step is committed or skipped."""
        return self._committed

    def __iter__(self) -> Iterator[PackedBatch]:
        if self._committed:
            raise LoaderError(f"step {self.index} is committed: its micro-batches have been released")
        if self._try.given == self.micro_batches:
            raise LoaderError(
                f"step {self.index} has given all of its micro-batches: they come once, keep them in a list "
                "to go over them again, or begin the step again with step.retry()"
            )
        while not self._committed and self._try.given < self.micro_batches:
            self._try.syncs.check_next(self._try.given)
            batch = self._batches.take(self._row(self._try.given))
            self._try.give(batch)
            self._look_ahead()
            yield batch
        if not self._committed:
            self._try.syncs.check_next(self._try.given)

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Explain what a step is to code that uses it as a batch."""
            raise AttributeError(
                f"a Step has no {name!r}: it holds micro-batches, take each by 'for batch in step'"
            )

    def _look_ahead(self) -> None:
        """Prefetch the batch of the next row, also of the next step, if the row has arrived.

        The row is only peeked at: nothing waits, and nothing counts as given.
        """
        if self._batches.looks_ahead:
            known = self._taken[self._try.given : self._try.given + 1]
            row = known[0] if known else self._rows.at_hand()
            if row is not None:
                self._batches.start(row)

    def _row(self, micro: int) -> StreamRow:
        """Return a micro-batch's row; it is kept until the step is committed, for `retry`."""
        if micro < len(self._taken):
            return self._taken[micro]
        row = EMPTY_ROW if micro >= self._facts.rows else self._rows.take()
        if row is None:
            raise StreamError(f"the stream ended inside step {self.index}, after {micro} micro-batches")
        self._taken.append(row)
        return row

    # -- training --------------------------------------------------------------------------------

    def sync(self, model: Any, batch: PackedBatch) -> AbstractContextManager[Any]:
        """Return the context for a micro-batch's forward and backward pass.

        Gradients are synchronised once every micro-batch of the step has been passed here, in any order:
        DDP's ``no_sync``, FSDP2's ``set_requires_gradient_sync``; a plain module needs neither. A loop that
        uses it must do so for every micro-batch, empty ones included, and equally often on every rank; one
        that is left out is an error when the next is taken, or at `commit`.
        """
        self._try.syncs.check_before(self._uses_sync)
        return self._try.syncs.context(model, self._try.number_of(batch, "sync"), self._try.given)

    def loss(self, logits: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        """Return the loss to call ``backward`` on.

        The mean of the cross entropy over the step's supervised tokens of all ranks, once gradients
        are averaged over ranks and added up over micro-batches.

        Args:
            logits: (1, T, vocabulary) or (B, S, vocabulary), as the model gives them: position i
                predicts the token at i + 1; the shift happens here.
            batch: The micro-batch that the logits are of.

        Returns:
            A scalar; 0 with a zero gradient for every parameter where the batch is empty. Once a gradient
            reaches it the batch counts as seen to be trained; see `observe`.
        """
        micro = self._try.number_of(batch, "loss")
        if not isinstance(logits, torch.Tensor):
            raise TypeError(
                f"logits must be a tensor, got {type_name(logits)}: pass the model output's .logits"
            )
        loss = next_token_loss_sum(logits, batch.labels) * self.loss_scale
        self._try.flags.watch(loss, micro)
        return loss

    def observe(self, loss: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        """Return your own loss unchanged, watched: a gradient that reaches it shows the batch was trained.

        What `loss` returns is watched already. A step is refused at `commit` where some of its batches were
        seen to be trained and others not; where nothing is watched, the audit reports that training was not
        observed. Call it, and `loss`, outside of what ``torch.compile(fullgraph=True)`` compiles.

        Args:
            loss: A tensor that comes from this batch and goes into ``backward``, such as its summed loss.
            batch: The micro-batch that it is of.
        """
        micro = self._try.number_of(batch, "observe")
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"loss must be a tensor, got {type_name(loss)}")
        self._try.flags.watch(loss, micro)
        return loss

    # -- commit ----------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the step: the optimizer has taken it, and the next checkpoint includes it.

        Raises:
            LoaderError: Micro-batches were not taken or not all passed to `sync`, a gradient has reached the
                losses of some batches and not of others, or the step is committed already.
        """
        self._check_uncommitted("committed")
        if self._try.given < self.micro_batches:
            raise LoaderError(
                f"step {self.index} has {self.micro_batches} micro-batches on this rank, but only "
                f"{self._try.given} were taken before commit: iterate over the whole step"
            )
        self._try.syncs.check_all(bool(self._uses_sync))
        self._try.flags.check(self.index, [row.indices for row in self._taken])
        self._close()

    def retry(self) -> None:
        """Restart the step: iterating gives the same micro-batches once more.

        For a step that was not taken, such as after a float16 overflow. Call it on every
        rank, instead of `commit`, and clear the gradients. Only the last try counts as trained; the
        ledger counts the retries.

        Raises:
            LoaderError: The step is committed.
        """
        self._check_uncommitted("begun again")
        self._retries += 1
        self._uses_sync = True if self._try.syncs.used else self._uses_sync
        self._try = StepTry(self.index, self.micro_batches)

    def skip(self) -> None:
        """End the step without training it, and go on to the next one.

        Call it on every rank, instead of `commit`. The examples of the step are not trained in this
        epoch: the ledger names the step and counts its examples separately, and the audit reports them.

        Raises:
            LoaderError: The step is committed.
        """
        self._check_uncommitted("skipped")
        for micro in range(len(self._taken), self.micro_batches):
            self._row(micro)
        self._skipped = True
        self._close()

    def _check_uncommitted(self, what: str) -> None:
        if self._committed:
            raise LoaderError(
                f"step {self.index} is committed already and cannot be {what}: end a step once, with commit, "
                "after optimizer.step(), or with skip"
            )

    def _close(self) -> None:
        self._committed = True
        self._on_commit(self)
        self._taken.clear()

    @property
    def uses_sync(self) -> bool | None:
        """Whether the loop uses `sync`, as its steps so far show; None before one was trained."""
        if self._skipped and not self._try.syncs.used:
            return self._uses_sync
        return bool(self._uses_sync) or self._try.syncs.used

    @property
    def facts(self) -> StepFacts:
        """The step's numbers, as the deal planned them."""
        return self._facts

    def trained(self) -> TrainedStep:
        """Return what this rank has trained of the step: each batch once, and whether that was observed."""
        return TrainedStep(
            index=self._index,
            epoch=self.epoch,
            batches=tuple(
                # Copied: a view would keep the whole block of the row in memory.
                TrainedBatch(row.indices.copy(), len(row.input_ids), self._try.flags.reached(micro))
                for micro, row in enumerate(self._taken)
            ),
            retries=self._retries,
            skipped=self._skipped,
        )
