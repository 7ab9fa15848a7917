"""Which bin each example of a window goes to, packed as full as the budget allows.

Packed batches are best-fit decreasing (Johnson et al. 1974): the longest example first, each into the
bin with the least room that it still fits. Padded ones cost rows times the longest row, so there the
examples are sorted and cut where the budget ends: rows of a batch are of near-equal length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raypack.batching.greedy import greedy_ends, kernel_limits
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.rooms import Rooms


def best_fit_bins(lengths: NDArray[np.int32], options: TokenBatchOptions) -> tuple[NDArray[np.int64], int]:
    """Return the bin of each example, and how many bins there are.

    A pure function of its arguments. Among equal lengths the earlier example goes first, among bins
    with equal room the earlier bin.

    Args:
        lengths: (n,) tokens of each example, 1 to the budget.
        options: The limits of a batch.

    Returns:
        (n,) int64 numbers in [0, bins), each of them used, and bins.
    """
    longest_first = np.argsort(-lengths.astype(np.int64), kind="stable")
    ordered = lengths[longest_first]
    if options.layout is TokenBatchLayout.PADDED:
        sizes = np.diff(greedy_ends(ordered, options), prepend=0)
        owners, count = np.repeat(np.arange(len(sizes)), sizes), len(sizes)
    else:
        owners, count = _best_fit_decreasing(ordered, options)
    bins = np.empty(len(lengths), np.int64)
    bins[longest_first] = owners
    return bins, count


def _best_fit_decreasing(
    ordered: NDArray[np.int32], options: TokenBatchOptions
) -> tuple[NDArray[np.int64], int]:
    """Return the bin of each example; ``ordered`` falls.

    Examples of one length go in together: a bin that takes one of them has the least room, so it is
    also the best for the next as long as that fits.
    """
    budget, most = kernel_limits(options)
    alone = int(np.searchsorted(-ordered.astype(np.int64), -(budget // 2)))  # no two of them fit one bin
    owners = list(range(alone))
    if alone == len(ordered) or most == 1:
        return np.arange(len(ordered)), len(ordered)
    smallest = int(ordered[-1])
    rooms = Rooms((budget - ordered[:alone].astype(np.int64)).tolist())
    held = [1] * alone
    for length, count in _runs(ordered[alone:]):
        while count:
            found = rooms.take(length)
            if found is None:
                room, number = budget, len(held)
                held.append(0)
            else:
                room, number = found
            fitting = min(room // length, count, most - held[number])
            owners += [number] * fitting
            held[number] += fitting
            count -= fitting
            room -= fitting * length
            if room >= smallest and held[number] < most:
                rooms.put(room, number)
    return np.array(owners, np.int64), len(held)


def _runs(ordered: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Return (length, how many) of each run of equal lengths."""
    ends = np.append(np.flatnonzero(np.diff(ordered)) + 1, len(ordered))
    return list(zip(ordered[ends - 1].tolist(), np.diff(ends, prepend=0).tolist(), strict=True))
