"""Assigns each example of a window to a bin, by best fit; the compiled loop is `kernels/best_fit.py`.

The packed layout uses best-fit decreasing (Johnson et al. 1974): the longest example first, each into
the fullest bin that still holds it. A padded batch costs its rows times its longest row, so there the
examples are sorted by length and cut where the budget ends: the rows of a batch have nearly equal length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raypack.arrays import read_only
from raypack.batching.greedy import greedy_ends, kernel_limits
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions


def best_fit_bins(
    lengths: NDArray[np.int32], options: TokenBatchOptions, names: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], int]:
    """Return the bin of each example, and how many bins there are.

    A pure function of its arguments. Among equal lengths the earlier example goes first, among bins
    with equal free space the earlier bin.

    Args:
        lengths: (n,) tokens of each example, 1 to the budget.
        options: The limits of a batch.
        names: (n,) source indices, by which an error names an example; None: its position in ``lengths``.

    Returns:
        (n,) int64 numbers in [0, bins), each of them used, and bins.

    Raises:
        SamplerError: an example is empty or over budget.
    """
    from raypack.batching.kernels.best_fit import best_fit_decreasing, longest_first

    budget, most = kernel_limits(options)
    table = read_only(lengths, np.int32)
    bins = np.empty(len(table), np.int64)
    if options.layout is TokenBatchLayout.PADDED:
        order = np.empty(len(table), np.int64)
        count, wrong = 0, longest_first(table, budget, order)
    else:
        count, wrong = best_fit_decreasing(table, budget, most, bins)
    if wrong >= 0:
        raise options.refusal(int(table[wrong]), wrong if names is None else int(names[wrong]))
    if options.layout is TokenBatchLayout.PADDED:
        sizes = np.diff(greedy_ends(table[order], options), prepend=0)
        bins[order], count = np.repeat(np.arange(len(sizes)), sizes), len(sizes)
    return bins, count
