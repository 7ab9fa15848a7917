"""The sampler of one data rank: which example comes next, and what has been trained of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.arguments import choice, integer, optional_integer, shown, text
from raypack.choices import SHUFFLES
from raypack.errors import SamplerError
from raypack.sampling.loading import load_items
from raypack.sampling.lookahead import Lookahead
from raypack.sampling.orders.epoch_order import SEED_LIMIT
from raypack.sampling.orders.explicit_order import ExplicitOrder
from raypack.sampling.orders.permutation import MAXIMUM_SIZE
from raypack.sampling.shard import TAILS, StridedShard, epoch_size
from raypack.sampling.states.consolidated import ConsolidatedSamplerState
from raypack.sampling.states.fields import make_order
from raypack.sampling.states.rank_state import SamplerState
from raypack.sampling.states.records import check_record

_FIXED = ("source_id", "source_length", "rank", "world_size", "seed", "tail", "shuffle", "order")


class StatefulShardSampler:
    """Deals an epoch's order over data ranks and remembers what this rank has trained of its part.

    Two cursors move over the rank's order: *issued*, what was handed out, may run ahead; *committed*, what
    was trained, is all that a state holds. The order is computed where it is asked for and never stored.
    """

    def __init__(
        self,
        source_id: str,
        source_length: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
        epoch: int = 0,
        tail: str = "uneven",
        shuffle: str = "full",
        order: ArrayLike | ExplicitOrder | None = None,
    ) -> None:
        """Begin an epoch.

        Args:
            source_id: Name of the immutable source, non-empty.
            source_length: N, examples in the source.
            rank: Data rank, 0 to world_size - 1.
            world_size: Data ranks, at least 1.
            seed: Seed of the order in [0, 2**64); None for source order.
            epoch: Epoch number in [0, 2**64).
            tail: "uneven": all N examples, ranks differ by one at most. "drop": the last N % world_size of
                the order are left out.
            shuffle: "full", or "block" for stores where locality pays.
            order: (N,) integers, every index once: the order of every epoch, in place of a seed's.
        """
        self._source_id = text("source_id", source_id)
        self._source_length = integer("source_length", source_length, minimum=0, maximum=MAXIMUM_SIZE)
        self._world_size = integer("world_size", world_size, minimum=1, maximum=MAXIMUM_SIZE)
        self._rank = integer("rank", rank, minimum=0, maximum=self._world_size - 1)
        self._seed = optional_integer("seed", seed, minimum=0, maximum=SEED_LIMIT - 1)
        self._tail = choice("tail", tail, TAILS)
        self._shuffle = choice("shuffle", shuffle, SHUFFLES)
        explicit = order if order is None or isinstance(order, ExplicitOrder) else ExplicitOrder(order)
        self._explicit = explicit
        self.start_epoch(epoch)

    @classmethod
    def from_state(cls, state: SamplerState) -> StatefulShardSampler:
        """Return a sampler that goes on where a state was saved; what was issued only comes again.

        Raises:
            TypeError: ``state`` is no `SamplerState`.
        """
        check_record("state", state, SamplerState)
        return cls._of(state, state.scope, state.committed)

    @classmethod
    def reshard(
        cls, consolidated: ConsolidatedSamplerState, rank: int, world_size: int
    ) -> StatefulShardSampler:
        """Return a sampler for a rank of a new world: its part of what remains of the epoch.

        Args:
            consolidated: What remains; see `ConsolidatedSamplerState.consolidate`.
            rank: Data rank in the new world.
            world_size: Data ranks of the new world, any number.

        Raises:
            TypeError: an argument has another type.
            SamplerError: ``rank`` or ``world_size`` is out of range.
        """
        check_record("consolidated", consolidated, ConsolidatedSamplerState)
        return cls._of(consolidated, consolidated.scope(rank, world_size), 0)

    @classmethod
    def _of(
        cls, record: SamplerState | ConsolidatedSamplerState, scope: StridedShard, committed: int
    ) -> StatefulShardSampler:
        sampler = cls(
            record.source_id,
            record.source_length,
            rank=scope.rank,
            world_size=scope.world_size,
            seed=record.seed,
            epoch=record.epoch,
            tail=record.tail,
            shuffle=record.shuffle,
            order=record.order,
        )
        sampler._enter(record.epoch, scope, committed)
        return sampler

    @property
    def source_id(self) -> str:
        """Name of the source."""
        return self._source_id

    @property
    def source_length(self) -> int:
        """N, examples in the source."""
        return self._source_length

    @property
    def rank(self) -> int:
        """This data rank."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Data ranks."""
        return self._world_size

    @property
    def epoch(self) -> int:
        """Number of the epoch under way."""
        return self._epoch

    @property
    def epoch_size(self) -> int:
        """E, examples of the epoch under the tail rule, of all ranks."""
        return self._scope.epoch_size

    @property
    def ahead(self) -> Lookahead:
        """The reader of this rank's order over its present scope; another epoch or scope has another."""
        return self._ahead

    @property
    def indices(self) -> NDArray[np.int64]:
        """This rank's whole order, committed ones included: int64, read-only, computed when asked for."""
        indices = self._ahead.between(0, self._scope.shard_size)
        indices.flags.writeable = False
        return indices

    @property
    def issued(self) -> int:
        """Examples of this rank's order that were handed out."""
        return self._issued

    @property
    def committed(self) -> int:
        """Examples of this rank's order that were trained."""
        return self._committed

    @property
    def remaining(self) -> int:
        """Examples of this rank's order that are not committed."""
        return self._scope.shard_size - self._committed

    def unissued_indices(self, limit: int | None = None) -> NDArray[np.int64]:
        """Return what would be issued next, without issuing it.

        Args:
            limit: How many at the most; None for all that is left.

        Returns:
            (n,) int64 source indices.
        """
        limit = optional_integer("limit", limit, minimum=0)
        left = self._scope.shard_size - self._issued
        return self._ahead.between(self._issued, self._issued + (left if limit is None else min(limit, left)))

    def next_indices(self, count: int) -> NDArray[np.int64] | None:
        """Issue the next examples.

        Args:
            count: How many, at least 1; fewer come where fewer are left.

        Returns:
            (n,) int64 source indices, None where none is left.
        """
        count = integer("count", count, minimum=1)
        indices = self.unissued_indices(count)
        self._issued += len(indices)
        return indices if len(indices) else None

    def __iter__(self) -> Iterator[int]:
        """Issue one index at a time until none is left."""
        while (indices := self.next_indices(1)) is not None:
            yield int(indices[0])

    def load_next(self, dataset: Sequence[Any], count: int) -> list[Any] | None:
        """Load the next examples, and only then issue them.

        Args:
            dataset: The source: ``len(dataset)`` is N and ``dataset[i]`` is example i.
            count: How many, at least 1; fewer come where fewer are left.

        Returns:
            The examples in order, None where none is left.

        Raises:
            SamplerError: the dataset has another length or lacks a row; nothing is issued.
        """
        count = integer("count", count, minimum=1)
        indices = self.unissued_indices(count)
        items = load_items(dataset, indices, self._source_length)
        self._issued += len(indices)
        return items if len(indices) else None

    def commit(self, examples: int) -> None:
        """Record that the next examples were trained.

        Args:
            examples: How many, at most those that are issued and not committed.
        """
        examples = integer("examples", examples, minimum=0)
        if examples > self._issued - self._committed:
            raise SamplerError(
                f"examples must be at most {self._issued - self._committed}, those issued and not committed, "
                f"got {shown(examples)}; commit what was trained, after it was issued"
            )
        self._committed += examples

    def rewind_uncommitted(self) -> None:
        """Take back what was issued and not committed; the same indices come again."""
        self._issued = self._committed

    def start_epoch(self, epoch: int) -> None:
        """Begin an epoch on all N examples and the present world; outstanding work is given up.

        Args:
            epoch: Epoch number in [0, 2**64).
        """
        epoch = integer("epoch", epoch, minimum=0, maximum=SEED_LIMIT - 1)
        size = epoch_size(self._source_length, self._world_size, self._tail)
        self._enter(epoch, StridedShard.fresh(self._rank, self._world_size, size), 0)

    def state(self) -> SamplerState:
        """Return what is committed, as a record."""
        scope = self._scope
        return SamplerState(
            source_id=self._source_id,
            source_length=self._source_length,
            rank=self._rank,
            world_size=self._world_size,
            epoch=self._epoch,
            seed=self._seed,
            tail=self._tail,
            shuffle=self._shuffle,
            order=self._explicit,
            order_digest=self._order.digest(),
            epoch_size=scope.epoch_size,
            carried_consumed=scope.consumed,
            scope_size=scope.size,
            head_size=scope.head_size,
            head=scope.head,
            committed=self._committed,
        )

    def load_state(self, state: SamplerState) -> None:
        """Go on where a state of this same rank was saved; another epoch or scope is fine.

        Raises:
            TypeError: ``state`` is no `SamplerState`.
            SamplerError: it is another rank's, world's, source's or order's.
        """
        check_record("state", state, SamplerState)
        state.validate()
        own = self.state()
        for name in _FIXED:
            mine, other = getattr(own, name), getattr(state, name)
            if mine != other:
                raise SamplerError(
                    f"state must have {name} {shown(mine)}, got {shown(other)}; for another world use "
                    "ConsolidatedSamplerState.consolidate and StatefulShardSampler.reshard"
                )
        self._enter(state.epoch, state.scope, state.committed)

    def _enter(self, epoch: int, scope: StridedShard, committed: int) -> None:
        order = make_order(self._source_length, self._seed, epoch, self._shuffle, self._explicit)
        self._order, self._epoch, self._scope = order, epoch, scope
        self._issued = self._committed = committed
        self._ahead = Lookahead(order, scope)
