"""The token batch sampler of one data rank: greedy batches over its order, resumable at any example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from raypack.arguments import integer
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchOptions
from raypack.batching.plan import TokenBatch, TokenBatchPlan
from raypack.batching.rank.chain import BatchChain
from raypack.batching.rank.consolidated import ConsolidatedTokenBatchState
from raypack.batching.rank.state import TokenBatchState, check_table
from raypack.errors import SamplerError
from raypack.sampling.loading import load_items
from raypack.sampling.sampler import StatefulShardSampler
from raypack.sampling.states.records import check_record

_Batch = TypeVar("_Batch")


class StatefulTokenBatchSampler:
    """Cuts one rank's order into batches of a token budget, each the longest prefix that fits.

    Batches never change the order: nothing is sorted, pulled forward, truncated or repeated. Ranks may
    have different numbers of batches. Examples are committed, not batches, so a commit may end anywhere.
    """

    def __init__(
        self, sampler: StatefulShardSampler, lengths: LengthTable | ArrayLike, options: TokenBatchOptions
    ) -> None:
        """Wrap a sampler.

        Args:
            sampler: The rank's order and cursors; it belongs to this object from now on.
            lengths: (N,) tokens of each example of the source.
            options: The limits of a batch.

        Raises:
            TypeError: an argument has another type.
            SamplerError: the table has another size than the source, or a length is 0 or above the budget.
        """
        check_record("sampler", sampler, StatefulShardSampler)
        check_record("options", options, TokenBatchOptions)
        table = LengthTable.of(lengths)
        check_table(table, sampler.source_length)
        options.validate_lengths(table)
        self._sampler = sampler
        self._lengths = table
        self._options = options
        self._issuing = BatchChain(sampler.ahead, table, options)
        self._planning = BatchChain(sampler.ahead, table, options)

    @classmethod
    def from_state(
        cls, state: TokenBatchState, lengths: LengthTable | ArrayLike
    ) -> StatefulTokenBatchSampler:
        """Return a sampler that goes on where a state was saved.

        Args:
            state: The record.
            lengths: The table that it was saved with.

        Raises:
            TypeError: ``state`` is no `TokenBatchState`.
            SamplerError: the table is another.
        """
        check_record("state", state, TokenBatchState)
        table = LengthTable.of(lengths)
        check_table(table, state.sampler.source_length, state.lengths_digest)
        return cls(StatefulShardSampler.from_state(state.sampler), table, state.options)

    @classmethod
    def reshard(
        cls,
        consolidated: ConsolidatedTokenBatchState,
        rank: int,
        world_size: int,
        lengths: LengthTable | ArrayLike,
    ) -> StatefulTokenBatchSampler:
        """Return a sampler for a rank of a new world: its part of what remains, batched anew.

        Args:
            consolidated: What remains.
            rank: Data rank in the new world.
            world_size: Data ranks of the new world, any number.
            lengths: The table that the records were saved with.
        """
        check_record("consolidated", consolidated, ConsolidatedTokenBatchState)
        table = LengthTable.of(lengths)
        check_table(table, consolidated.sampler.source_length, consolidated.lengths_digest)
        sampler = StatefulShardSampler.reshard(consolidated.sampler, rank, world_size)
        return cls(sampler, table, consolidated.options)

    @property
    def sampler(self) -> StatefulShardSampler:
        """The order and its cursors; read them, and move them through this object."""
        return self._sampler

    @property
    def lengths(self) -> LengthTable:
        """Tokens of each example of the source."""
        return self._lengths

    @property
    def options(self) -> TokenBatchOptions:
        """The limits of a batch."""
        return self._options

    def peek(self) -> TokenBatchPlan | None:
        """Return the next batch without issuing it; None where nothing is left."""
        self._issuing = self._chain(self._issuing)
        self._issuing.begin_at(self._sampler.issued)
        plans = self._issuing.plans(0, 1)
        return plans[0] if plans else None

    def next_plan(self) -> TokenBatchPlan | None:
        """Issue the next batch; None where nothing is left."""
        plan = self.peek()
        if plan is not None:
            self._sampler.next_indices(len(plan))
        return plan

    def plans(self, start: int, stop: int) -> list[TokenBatchPlan]:
        """Return batches counted from the committed state; nothing is issued, so asking twice is the same.

        Args:
            start: First batch; 0 is the first that is not committed.
            stop: One past the last batch, at least ``start``.

        Returns:
            Up to stop - start plans, fewer where the order ends.
        """
        start = integer("start", start, minimum=0)
        stop = integer("stop", stop, minimum=start)
        return self._from_committed().plans(start, stop)

    def remaining_batches(self) -> int:
        """Return how many batches there are from the committed state to the end of this rank's order."""
        return self._from_committed().count()

    def load_next(self, dataset: Sequence[Any]) -> TokenBatch | None:
        """Load the next batch, and only then issue it.

        Args:
            dataset: The source: ``len(dataset)`` is N and ``dataset[i]`` is example i.

        Returns:
            The plan and its examples, None where nothing is left.

        Raises:
            SamplerError: the dataset has another length or lacks a row; nothing is issued.
        """
        batch = self._load(dataset)
        if batch is not None:
            self._sampler.next_indices(len(batch.plan))
        return batch

    def load_batch(
        self, dataset: Sequence[Any], batcher: Callable[[list[Any], Any], _Batch], device: Any
    ) -> tuple[TokenBatchPlan, _Batch] | None:
        """Load and collate the next batch, and only then issue it.

        Args:
            dataset: See `load_next`.
            batcher: Called with the examples and the device.
            device: Whatever the batcher takes.

        Returns:
            The plan and what the batcher returned, None where nothing is left.
        """
        batch = self._load(dataset)
        if batch is None:
            return None
        collated = batcher(batch.items, device)
        self._sampler.next_indices(len(batch.plan))
        return batch.plan, collated

    def commit(self, examples: int) -> None:
        """Record that the next examples were trained: examples, not batches or token slots."""
        self._sampler.commit(examples)

    def rewind_uncommitted(self) -> None:
        """Take back what was issued and not committed."""
        self._sampler.rewind_uncommitted()

    def start_epoch(self, epoch: int) -> None:
        """Begin an epoch on all examples; see `StatefulShardSampler.start_epoch`."""
        self._sampler.start_epoch(epoch)

    def state(self) -> TokenBatchState:
        """Return what is committed, as a record."""
        return TokenBatchState(
            sampler=self._sampler.state(), lengths_digest=self._lengths.digest, options=self._options
        )

    def load_state(self, state: TokenBatchState) -> None:
        """Go on where a state of this same rank was saved.

        Raises:
            TypeError: ``state`` is no `TokenBatchState`.
            SamplerError: its options, table, or sampler are others'.
        """
        check_record("state", state, TokenBatchState)
        state.validate()
        if state.options != self._options:
            raise SamplerError(f"state must have the options {self._options}, got {state.options}")
        check_table(self._lengths, state.sampler.source_length, state.lengths_digest)
        self._sampler.load_state(state.sampler)

    def _load(self, dataset: Sequence[Any]) -> TokenBatch | None:
        plan = self.peek()
        if plan is None:
            return None
        return TokenBatch(plan, load_items(dataset, plan.indices, self._sampler.source_length))

    def _from_committed(self) -> BatchChain:
        self._planning = self._chain(self._planning)
        self._planning.begin_at(self._sampler.committed)
        return self._planning

    def _chain(self, chain: BatchChain) -> BatchChain:
        """Return the chain, or a new one where the sampler has entered another scope."""
        if chain.ahead is self._sampler.ahead:
            return chain
        return BatchChain(self._sampler.ahead, self._lengths, self._options)
