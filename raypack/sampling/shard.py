"""One rank's part of the epoch: a strided partition of what remained when the present topology began.

What was left is a *head*, the positions that some ranks had trained past and others had not, and a
*tail*, every position from there to the end of the epoch. Both are in the order of the epoch, so the
deal is strided over head and tail together, and what any commits leave is a head and a tail again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TAILS = ("uneven", "drop")


def epoch_size(source_length: int, world_size: int, tail: str) -> int:
    """Return how many examples an epoch has under a tail rule.

    Args:
        source_length: Examples in the source.
        world_size: Data ranks.
        tail: "uneven" keeps all; "drop" leaves out the few at the end of the order that do not go round.
    """
    return source_length if tail == "uneven" else source_length - source_length % world_size


def shard_size(total: int, rank: int, world_size: int) -> int:
    """Return how many of ``total`` slots a strided deal gives to a rank."""
    return total // world_size + (rank < total % world_size)


@dataclass(frozen=True, slots=True, eq=False)
class StridedShard:
    """One rank's part of a scope; slot k of the rank is slot ``rank + k * world_size`` of all.

    Attributes:
        rank: This data rank.
        world_size: Data ranks.
        epoch_size: E, the examples of the epoch under its tail rule.
        consumed: Examples of the epoch trained before this scope began.
        head_size: Positions in the head, of all ranks.
        head: (shard_size(head_size),) int64, this rank's positions of the head, increasing, read-only.
    """

    rank: int
    world_size: int
    epoch_size: int
    consumed: int
    head_size: int
    head: NDArray[np.int64]

    @classmethod
    def fresh(cls, rank: int, world_size: int, size: int) -> StridedShard:
        """Return the scope of an epoch of ``size`` examples that nobody has begun."""
        return cls(rank, world_size, size, 0, 0, np.empty(0, np.int64))

    @property
    def size(self) -> int:
        """S, the slots of all ranks."""
        return self.epoch_size - self.consumed

    @property
    def shard_size(self) -> int:
        """The slots of this rank."""
        return shard_size(self.size, self.rank, self.world_size)

    @property
    def tail_start(self) -> int:
        """The first position of the tail; all before it are consumed or in the head."""
        return self.consumed + self.head_size

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the positions in the epoch's order of this rank's slots [start, stop).

        Args:
            start: First slot, at least 0.
            stop: One past the last slot, at most ``shard_size``.
        """
        cut = min(max(len(self.head), start), stop)
        # Slot k of the tail part lies at tail_start + (rank + k * world_size - head_size).
        offset = self.tail_start + self.rank - self.head_size
        slots = np.arange(cut, stop, dtype=np.int64)
        return np.concatenate([self.head[start:cut], slots * self.world_size + offset])
