"""Packed greedy batches of several examples each: jumps along the running sum of the lengths."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from raypack.batching.limits import Limits


def starts_by_sum(lengths: NDArray[np.int32], limits: Limits, typical: int) -> NDArray[np.int64]:
    """Return where packed batches begin, by one search in the running sum for each.

    Args:
        lengths: (n,) tokens of each example, n >= 1, none above the budget.
        limits: What a batch may hold.
        typical: How many examples a batch may be expected to hold.
    """
    running = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=running[1:])
    sums, size, reach = running.data, len(lengths), min(2 * typical, limits.examples)
    starts, start = [], 0
    while start < size:
        starts.append(start)
        full = sums[start] + limits.tokens
        limit = start + reach + 1
        if limit > size:
            limit = size + 1
        above = bisect_right(sums, full, start + 1, limit)
        if above == limit <= size and reach < limits.examples:
            above = min(bisect_right(sums, full, limit), start + limits.examples + 1)
        start = above - 1
    return np.array(starts, np.int64)
