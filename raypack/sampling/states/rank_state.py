"""What a rank saves: how far it has trained, and which order it was training in."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from raypack.arguments import integer
from raypack.errors import SamplerError
from raypack.sampling.orders.explicit_order import ExplicitOrder
from raypack.sampling.orders.permutation import MAXIMUM_SIZE
from raypack.sampling.shard import StridedShard, shard_size
from raypack.sampling.states.fields import OrderRecord, check_head
from raypack.sampling.states.records import check_version

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SamplerState(OrderRecord):
    """One rank's committed place in an epoch. It checks itself when made; its size follows the skew
    between ranks, never the source.

    Attributes:
        version: Format of the record, 1.
        source_id: The caller's name of the immutable source.
        source_length: N, examples in the source.
        rank: Data rank.
        world_size: Data ranks.
        epoch: Epoch number.
        seed: Seed of the order; None for source order or an explicit one.
        tail: "uneven" or "drop".
        shuffle: "full" or "block".
        order: The caller's explicit order; None where the order is computed.
        order_digest: Hash of the order at fixed positions, hex.
        epoch_size: E, examples of the epoch under the tail rule.
        carried_consumed: C, examples of the epoch trained before this world began.
        scope_size: S, examples left then; C + S = E.
        head_size: Positions in the scope's head, of all ranks.
        head: (shard_size(head_size),) int64, this rank's positions of the head, read-only.
        committed: Examples that this rank has trained of its part of the scope.
    """

    RECORD: ClassVar[str] = "sampler state"

    version: int = STATE_VERSION
    source_id: str
    source_length: int
    rank: int
    world_size: int
    epoch: int
    seed: int | None
    tail: str
    shuffle: str
    order: ExplicitOrder | None
    order_digest: str
    epoch_size: int
    carried_consumed: int
    scope_size: int
    head_size: int
    head: NDArray[np.int64]
    committed: int

    def __post_init__(self) -> None:
        """Check the record."""
        self.validate()

    def validate(self) -> None:
        """Check identity, counts, head and order.

        Raises:
            TypeError: a field has another type.
            SamplerError: a field breaks its rule.
        """
        check_version(self.RECORD, self.version, STATE_VERSION)
        put = functools.partial(object.__setattr__, self)
        put("world_size", integer("world_size", self.world_size, minimum=1, maximum=MAXIMUM_SIZE))
        put("rank", integer("rank", self.rank, minimum=0, maximum=self.world_size - 1))
        self.check_source()
        self._check_counts()
        own = shard_size(self.head_size, self.rank, self.world_size)
        put("head", check_head(self.head, own, self.carried_consumed + self.head_size))
        self.check_order()

    def _check_counts(self) -> None:
        put = functools.partial(object.__setattr__, self)
        for name in ("carried_consumed", "scope_size"):
            put(name, integer(name, getattr(self, name), minimum=0, maximum=self.epoch_size))
        if self.carried_consumed + self.scope_size != self.epoch_size:
            raise SamplerError(
                f"carried_consumed + scope_size must be epoch_size = {self.epoch_size}, "
                f"got {self.carried_consumed} + {self.scope_size}"
            )
        put("head_size", integer("head_size", self.head_size, minimum=0, maximum=self.scope_size))
        size = shard_size(self.scope_size, self.rank, self.world_size)
        put("committed", integer("committed", self.committed, minimum=0, maximum=size))

    @property
    def scope(self) -> StridedShard:
        """This rank's part of what was left when this world began."""
        return StridedShard(
            self.rank, self.world_size, self.epoch_size, self.carried_consumed, self.head_size, self.head
        )

    @property
    def indices(self) -> NDArray[np.int64]:
        """This rank's source indices in order, committed ones included; int64, computed when asked for."""
        scope = self.scope
        return self.epoch_order().at(scope.positions(0, scope.shard_size))
