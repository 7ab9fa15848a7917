"""Greedy batches: each is the longest prefix of what is left that fits; nothing is pulled forward."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.batching.course import Course
from raypack.batching.lengths import LengthTable
from raypack.batching.limits import Limits
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.plan import TokenBatchPlan
from raypack.batching.search import prefix
from raypack.errors import SamplerError


def greedy_ends(lengths: LengthTable | ArrayLike, options: TokenBatchOptions) -> NDArray[np.int64]:
    """Return where each greedy batch of a sequence ends.

    Args:
        lengths: (n,) tokens of each example, in the order of the sequence.
        options: The limits of a batch.

    Returns:
        (batches,) int64, one past the last example of each batch; the last is n. More examples might
        have joined the last batch had the sequence gone on.

    Raises:
        SamplerError: an example is empty or over budget.
    """
    table = LengthTable.of(lengths)
    options.validate_lengths(table)
    return Course(table.array, Limits.of(options)).ends()


def longest_prefix(lengths: NDArray[np.int32], options: TokenBatchOptions, guess: int = 64) -> int:
    """Return how many of the first examples fit one batch, reading few more than those.

    Args:
        lengths: (n,) tokens of each example, none above the budget.
        options: The limits of a batch.
        guess: How many may be expected.
    """
    return prefix(lengths, Limits.of(options), guess)


def plans_from_ends(
    indices: NDArray[np.int64],
    lengths: NDArray[np.int32],
    ends: NDArray[np.int64],
    options: TokenBatchOptions,
) -> list[TokenBatchPlan]:
    """Return the plans of batches that lie end to end in a sequence.

    Args:
        indices: (n,) int64 source indices in order; the plans hold read-only views of it.
        lengths: (n,) tokens of those examples.
        ends: (batches,) one past each batch's last example, increasing, at most n.
        options: The limits that the batches keep; the layout decides the cost.

    Raises:
        SamplerError: ``ends`` is not strictly increasing within (0, n], or the sizes differ.
    """
    if len(indices) != len(lengths):
        raise SamplerError(f"indices and lengths must be as long, got {len(indices)} and {len(lengths)}")
    if not len(ends):
        return []
    starts = np.concatenate([[0], ends[:-1]])
    if not (starts < ends).all() or int(ends[-1]) > len(indices):
        raise SamplerError(f"ends must increase strictly from above 0 to at most {len(indices)}, got others")
    used = np.asarray(lengths[: ends[-1]])
    totals = np.add.reduceat(used, starts, dtype=np.int64)
    longest = np.maximum.reduceat(used, starts).astype(np.int64)
    slots = (ends - starts) * longest if options.layout is TokenBatchLayout.PADDED else totals
    view = indices.view()
    view.flags.writeable = False
    columns = (column.tolist() for column in (starts, ends, totals, longest, slots))
    make = TokenBatchPlan.unchecked
    return [make(view[a:b], *figures) for a, b, *figures in zip(*columns, strict=True)]
