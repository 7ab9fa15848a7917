"""The longest prefix that fits, and large greedy batches found one after the other by it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raypack.batching.limits import Limits


def starts_by_prefix(lengths: NDArray[np.int32], limits: Limits, typical: int) -> NDArray[np.int64]:
    """Return where batches begin, by `prefix` after `prefix`.

    Args:
        lengths: (n,) tokens of each example, n >= 1, none above the budget.
        limits: What a batch may hold.
        typical: How many examples a batch may be expected to hold.
    """
    starts = [0]
    while True:
        count = prefix(lengths[starts[-1] :], limits, typical)
        if starts[-1] + count == len(lengths):
            return np.array(starts, np.int64)
        starts.append(starts[-1] + count)
        typical = count


def prefix(lengths: NDArray[np.int32], limits: Limits, guess: int) -> int:
    """Return how many of the first examples fit one batch, reading few more than those.

    Args:
        lengths: (n,) tokens of each example, none above the budget.
        limits: What a batch may hold.
        guess: How many may be expected.
    """
    window = guess + guess // 4 + 8
    most = min(limits.examples, len(lengths))
    while True:
        part = lengths[: min(window, most)]
        if limits.padded:
            costs = np.maximum.accumulate(part).astype(np.int64) * np.arange(1, len(part) + 1)
        else:
            costs = np.cumsum(part, dtype=np.int64)
        count = int(np.searchsorted(costs, limits.tokens, side="right"))
        if count < len(part) or len(part) == most:
            return count
        window *= 2
