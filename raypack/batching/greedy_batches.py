"""The greedy batches of an epoch's order, planned as far as they were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from raypack.batching.greedy import greedy_ends, plans_from_ends
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.plan import TokenBatchPlan
from raypack.sampling.order import EpochOrder

_SMALLEST_STRETCH = 1 << 12
_LARGEST_STRETCH = 1 << 22


class GreedyBatches:
    """Batches from a position of the order on, with what a step adds up of each.

    Args:
        order: The epoch's order of N examples.
        lengths: Length of each example, by source index.
        options: Budget and layout.
        supervised: Label tokens of each example, shape (N,); None is length - 1.
        position: Where in the order the first batch begins.
    """

    def __init__(
        self,
        order: EpochOrder,
        lengths: LengthTable,
        options: TokenBatchOptions,
        supervised: npt.NDArray[Any] | None,
        position: int,
    ) -> None:
        self._order, self._lengths, self._options = order, lengths, options
        self._supervised = supervised
        self._position = position
        self.plans: list[TokenBatchPlan] = []
        self.squares: list[int] = []
        self.supervised: list[int] = []
        self.ends: list[int] = []

    def extend_to(self, count: int) -> None:
        """Plan on until there are ``count`` batches or the epoch ends."""
        while len(self.plans) < count and self._next_position() < len(self._lengths):
            self._plan_stretch(self._next_position(), count - len(self.plans))

    def drop_to(self, count: int, position: int) -> None:
        """Forget the first ``count`` batches, which end at ``position`` of the order.

        Where what is planned does not end a batch there (it was planned elsewhere, or not yet),
        all of it is forgotten and planning goes on from ``position``.
        """
        known = self.ends[min(count, len(self.ends)) - 1] if count and self.ends else self._position
        kept = count if known == position else len(self.plans)
        for values in (self.plans, self.squares, self.supervised, self.ends):
            del values[:kept]
        self._position = position

    def _next_position(self) -> int:
        return self.ends[-1] if self.ends else self._position

    def _plan_stretch(self, position: int, batches: int) -> None:
        """Pack a stretch of the order from ``position`` on, some ``batches`` long."""
        total = len(self._lengths)
        size = self._stretch(batches)
        while True:
            stop = min(position + size, total)
            indices = self._order.slice(position, stop)
            lengths = self._lengths.array[indices]
            ends = greedy_ends(lengths, self._options)
            if stop < total:
                ends = ends[:-1]  # the budget may not have closed the last one
            if len(ends):
                break
            size *= 2
        self._append(position, indices[: ends[-1]], lengths[: ends[-1]], ends)

    def _stretch(self, batches: int) -> int:
        """Return how many examples to look at for about ``batches`` batches."""
        sample = self._lengths.array[:: max(1, len(self._lengths) // 1024)]
        mean = max(1.0, float(np.mean(sample)))
        examples = batches * max(1.0, self._options.maximum_tokens / mean) * 1.25 + _SMALLEST_STRETCH
        return int(min(examples, _LARGEST_STRETCH))

    def _append(
        self,
        position: int,
        indices: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        ends: npt.NDArray[np.int64],
    ) -> None:
        plans = plans_from_ends(indices, lengths, ends, self._options)
        starts = np.concatenate([[0], ends[:-1]])
        supervised = lengths - 1 if self._supervised is None else self._supervised[indices]
        self.supervised += np.add.reduceat(supervised, starts, dtype=np.int64).tolist()
        self.squares += _square_sums(lengths, starts, plans, self._options)
        self.ends += (position + ends).tolist()
        self.plans += plans


def _square_sums(
    lengths: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    plans: Sequence[TokenBatchPlan],
    options: TokenBatchOptions,
) -> list[int]:
    """Return Σ length² of each batch, exact for any lengths."""
    if options.layout is TokenBatchLayout.PADDED:
        return [plan.token_slots * plan.maximum_sequence_length for plan in plans]
    wide = lengths.astype(np.int64)
    if int(wide.max()) ** 2 * len(wide) >= 2**63:
        return [int(total) for total in np.add.reduceat(wide.astype(object) ** 2, starts)]
    return list(map(int, np.add.reduceat(wide * wide, starts)))
