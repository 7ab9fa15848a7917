"""Greedy batches: each is the longest prefix of the remaining examples that fits; none is pulled forward."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.arrays import read_only
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions

LARGEST_BUDGET = 2**62
"""Tokens that no sum of lengths reaches: a larger budget is as good."""
MOST_EXAMPLES = 2**32 - 1
"""Examples of a batch at the most, so that rows times the longest of them fit 64 bits."""

_MOST_ENDS = 1_048_576


def greedy_ends(
    lengths: LengthTable | ArrayLike, options: TokenBatchOptions, names: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return where each greedy batch of a sequence ends.

    Args:
        lengths: (n,) tokens of each example, in the order of the sequence.
        options: The limits of a batch.
        names: (n,) source indices, by which an error names an example; None is its place.

    Returns:
        (batches,) int64, one past the last example of each batch; the last is n. More examples might
        have joined the last batch had the sequence gone on.

    Raises:
        SamplerError: an example is empty or over budget.
    """
    from raypack.batching.kernels.greedy import packed_ends, padded_ends

    known = isinstance(lengths, np.ndarray) and lengths.dtype == np.int32 and lengths.ndim == 1
    table = read_only(lengths if known else LengthTable.of(lengths).array, np.int32)
    find_ends = padded_ends if options.layout is TokenBatchLayout.PADDED else packed_ends
    budget, most = kernel_limits(options)
    pieces, start = [np.empty(0, np.int64)], 0
    while start < len(table):
        ends = np.empty(min(len(table) - start, _MOST_ENDS), np.int64)
        found, wrong = find_ends(table, start, budget, most, ends)
        if wrong >= 0:
            name = wrong if names is None else int(names[wrong])
            raise options.refusal(int(table[wrong]), name)
        pieces.append(ends[:found])
        start = int(ends[found - 1])
    return np.concatenate(pieces)


def kernel_limits(options: TokenBatchOptions) -> tuple[int, int]:
    """Return tokens and examples of a batch at the most, as numbers that kernels can add up."""
    most = MOST_EXAMPLES if options.maximum_examples is None else options.maximum_examples
    return min(options.maximum_tokens, LARGEST_BUDGET), min(most, MOST_EXAMPLES)
