"""Greedy packing of an epoch: each batch is the longest prefix of the remaining order that fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from raypack.batching.greedy import greedy_ends
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.planned_run import Boundary, PlannedRun, planned_run_of
from raypack.sampling.orders.epoch_order import EpochOrder

_SMALLEST_STRETCH = 1 << 12
_LARGEST_STRETCH = 1 << 22


class GreedyPacker:
    """Batches of consecutive positions of the order; a boundary is (position, 0).

    Args:
        order: The epoch's order of N examples.
        lengths: Length of each example, by source index.
        options: Budget and layout.
        supervised: Label tokens of each example, shape (N,); None is length - 1.
    """

    def __init__(
        self,
        order: EpochOrder,
        lengths: LengthTable,
        options: TokenBatchOptions,
        supervised: npt.NDArray[Any] | None,
    ) -> None:
        self._order, self._lengths, self._options = order, lengths, options
        self._supervised = supervised

    def plan_run(self, start: Boundary, count: int) -> PlannedRun:
        """Return batches from a boundary on, about ``count``; none at the epoch's end."""
        position, _ = start
        if position == len(self._lengths):
            return PlannedRun()
        indices, lengths, ends = self._closed(position, self._examples(count))
        boundaries = [(position + end, 0) for end in ends.tolist()]
        return planned_run_of(indices, lengths, ends, boundaries, self._options, self._supervised)

    def count(self, start: Boundary) -> int:
        """Return how many batches there are from a boundary to the epoch's end."""
        position, _ = start
        batches = 0
        while position < len(self._lengths):
            _, _, ends = self._closed(position, _LARGEST_STRETCH)
            position += int(ends[-1])
            batches += len(ends)
        return batches

    def _closed(
        self, position: int, size: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return indices, lengths and ends of the batches that some ``size`` examples close."""
        total = len(self._lengths)
        while True:
            stop = min(position + size, total)
            indices = self._order.slice(position, stop)
            lengths = self._lengths.array[indices]
            ends = greedy_ends(lengths, self._options, indices)
            if stop < total:
                ends = ends[:-1]  # the budget may not have closed the last one
            if len(ends):
                return indices[: ends[-1]], lengths[: ends[-1]], ends
            size *= 2

    def _examples(self, batches: int) -> int:
        """Return how many examples to look at for about ``batches`` batches."""
        sample = self._lengths.array[:: max(1, len(self._lengths) // 1024)]
        mean = max(1.0, float(np.mean(sample)))
        examples = batches * max(1.0, self._options.maximum_tokens / mean) * 1.25 + _SMALLEST_STRETCH
        return int(min(examples, _LARGEST_STRETCH))
