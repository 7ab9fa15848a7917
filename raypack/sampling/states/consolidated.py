"""What remains of an epoch, whatever the number of ranks: the record that a reshard starts from."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from raypack.arguments import integer
from raypack.errors import SamplerError
from raypack.sampling.orders.explicit_order import ExplicitOrder
from raypack.sampling.orders.permutation import MAXIMUM_SIZE
from raypack.sampling.shard import StridedShard
from raypack.sampling.states.consolidate import one_of_each_rank, remaining_head
from raypack.sampling.states.fields import OrderRecord, check_head
from raypack.sampling.states.rank_state import SamplerState
from raypack.sampling.states.records import check_version

CONSOLIDATED_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ConsolidatedSamplerState(OrderRecord):
    """What remains of an epoch, whatever the number of ranks. It checks itself when made.

    Attributes:
        version: Format of the record, 1.
        source_id: The caller's name of the immutable source.
        source_length: N, examples in the source.
        epoch: Epoch number.
        seed: Seed of the order; None for source order or an explicit one.
        tail: "uneven" or "drop"; not applied again before the next epoch.
        shuffle: "full" or "block".
        order: The caller's explicit order; None where the order is computed.
        order_digest: Hash of the order at fixed positions, hex.
        epoch_size: E, examples of the epoch under the tail rule.
        consumed: Examples of the epoch that are trained.
        remaining: Examples that are not; consumed + remaining = E.
        head: (h,) int64, the remaining positions before the tail, increasing, read-only. The tail is
            every position from consumed + h to E.
    """

    RECORD: ClassVar[str] = "consolidated sampler state"

    version: int = CONSOLIDATED_VERSION
    source_id: str
    source_length: int
    epoch: int
    seed: int | None
    tail: str
    shuffle: str
    order: ExplicitOrder | None
    order_digest: str
    epoch_size: int
    consumed: int
    remaining: int
    head: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Check the record."""
        self.validate()

    def validate(self) -> None:
        """Check identity, counts, head and order.

        Raises:
            TypeError: a field has another type.
            SamplerError: a field breaks its rule.
        """
        check_version(self.RECORD, self.version, CONSOLIDATED_VERSION)
        self.check_source()
        put = functools.partial(object.__setattr__, self)
        for name in ("consumed", "remaining"):
            put(name, integer(name, getattr(self, name), minimum=0, maximum=self.epoch_size))
        if self.consumed + self.remaining != self.epoch_size:
            raise SamplerError(
                f"consumed + remaining must be epoch_size = {self.epoch_size}, "
                f"got {self.consumed} + {self.remaining}"
            )
        size = np.size(self.head)
        if size > self.remaining:
            raise SamplerError(f"head must have at most remaining = {self.remaining} positions, got {size}")
        put("head", check_head(self.head, size, self.consumed + size))
        self.check_order()

    @classmethod
    def consolidate(cls, states: Iterable[SamplerState]) -> ConsolidatedSamplerState:
        """Put the records of all ranks together, in any order.

        Equal copies of a rank's record, as tensor- and pipeline-parallel peers save them, count once.

        Args:
            states: One record or more of every data rank, all saved at one step.

        Raises:
            TypeError: something else is among the states.
            SamplerError: a rank is missing or contradicts itself or another, or a record is invalid.
        """
        ranks = one_of_each_rank(states)
        first = ranks[0]
        consumed = first.carried_consumed + sum(state.committed for state in ranks)
        return cls(
            source_id=first.source_id,
            source_length=first.source_length,
            epoch=first.epoch,
            seed=first.seed,
            tail=first.tail,
            shuffle=first.shuffle,
            order=first.order,
            order_digest=first.order_digest,
            epoch_size=first.epoch_size,
            consumed=consumed,
            remaining=first.epoch_size - consumed,
            head=remaining_head(ranks),
        )

    @property
    def tail_start(self) -> int:
        """The first position of the tail."""
        return self.consumed + len(self.head)

    @property
    def remaining_indices(self) -> NDArray[np.int64]:
        """All source indices that remain, in the epoch's order; int64, computed when asked for."""
        order = self.epoch_order()
        return np.concatenate([order.at(self.head), order.slice(self.tail_start, self.epoch_size)])

    def scope(self, rank: int, world_size: int) -> StridedShard:
        """Return a rank's part of what remains, dealt over a new world.

        Args:
            rank: Data rank, 0 to world_size - 1.
            world_size: Data ranks, at least 1.

        Raises:
            SamplerError: either is out of range.
        """
        world_size = integer("world_size", world_size, minimum=1, maximum=MAXIMUM_SIZE)
        rank = integer("rank", rank, minimum=0, maximum=world_size - 1)
        head = self.head[rank::world_size].copy()
        head.flags.writeable = False
        return StridedShard(rank, world_size, self.epoch_size, self.consumed, len(self.head), head)
