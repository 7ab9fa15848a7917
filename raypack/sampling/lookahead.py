"""A rank's order, computed a stretch at a time where it is read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raypack.sampling.shard import StridedShard
from raypack.sampling.states.fields import Order

_STRETCH = 4_096


class Lookahead:
    """The source indices of a rank's slots; the stretch last read is kept, so that small reads are cheap."""

    __slots__ = ("_indices", "_start", "order", "scope")

    def __init__(self, order: Order, scope: StridedShard) -> None:
        """Read nothing yet.

        Args:
            order: The epoch's order.
            scope: This rank's part of it.
        """
        self.order = order
        self.scope = scope
        self._start = 0
        self._indices = np.empty(0, np.int64)

    def between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return a new (stop - start,) int64 array of the source indices of slots [start, stop)."""
        if stop - start > _STRETCH:
            return self.order.at(self.scope.positions(start, stop))
        offset = start - self._start
        if offset < 0 or offset + stop - start > len(self._indices):
            last = min(start + _STRETCH, self.scope.shard_size)
            self._indices = self.order.at(self.scope.positions(start, last))
            self._start, offset = start, 0
        return self._indices[offset : offset + stop - start].copy()
