"""Large greedy batches, found one after the other, and the longest prefix that fits."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from raypack.batching.jumps import PackedJumps
from raypack.batching.limits import Limits

_BLOCK = 65_536
_LEAST, _LEAST_BY_PREFIX = 16, 100
_LOOK_EVERY = 64


def ends_by_sum(lengths: NDArray[np.int32], limits: Limits, typical: int) -> NDArray[np.int64]:
    """Return where packed batches end, by one search in the running sum for each, while they are large.

    Args:
        lengths: (n,) tokens of each example, n >= 1, none above the budget.
        limits: What a batch may hold.
        typical: How many examples a batch may be expected to hold.

    Returns:
        (batches,) int64, n for an open one.
    """
    pieces, first = [np.empty(0, np.int64)], 0
    block = max(_BLOCK, 16 * typical)  # what the searches touch stays in the cache
    while first < len(lengths):
        part = lengths[first : first + block]
        ends = _ends_by_sum(part, limits, min(2 * typical, limits.examples))
        whole = first + len(part) == len(lengths)
        ends = ends if whole or ends[-1] < len(part) else ends[:-1]
        pieces.append(ends + first)
        first += int(ends[-1]) if len(ends) else 0
        if not len(ends) or ends[-1] < len(ends) * _LEAST:
            break
    return np.concatenate(pieces)


def _ends_by_sum(lengths: NDArray[np.int32], limits: Limits, reach: int) -> NDArray[np.int64]:
    size, budget, most = len(lengths), limits.tokens, limits.examples
    sums = PackedJumps(lengths, limits).sums.data
    ends: list[int] = []
    start = 0
    while start < size and start >= len(ends) * _LEAST:
        for _ in range(_LOOK_EVERY):
            full = sums[start] + budget
            limit = start + reach + 1
            if limit > size:
                limit = size + 1
            above = bisect_right(sums, full, start + 1, limit)
            if above == limit <= size and reach < most:
                above = min(bisect_right(sums, full, limit), start + most + 1)
            start = above - 1
            ends.append(start)
            if start == size:
                break
    return np.array(ends, np.int64)


def ends_by_prefix(lengths: NDArray[np.int32], limits: Limits, typical: int) -> NDArray[np.int64]:
    """Return where batches end, by `prefix` after `prefix`, while they are large.

    Args:
        lengths: (n,) tokens of each example, n >= 1, none above the budget.
        limits: What a batch may hold.
        typical: How many examples a batch may be expected to hold.

    Returns:
        (batches,) int64, n for an open one.
    """
    ends, start = [], 0
    while start < len(lengths):
        typical = prefix(lengths[start:], limits, typical)
        start += typical
        ends.append(start)
        if typical < _LEAST_BY_PREFIX:
            break
    return np.array(ends, np.int64)


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
