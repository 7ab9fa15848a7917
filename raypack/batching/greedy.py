"""Greedy batches: each is the longest prefix of what is left that fits; nothing is pulled forward."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.batching.lanes import batch_starts
from raypack.batching.lengths import LengthTable
from raypack.batching.limits import Filled, Limits, walk
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.plan import TokenBatchPlan
from raypack.batching.search import prefix, starts_by_prefix
from raypack.batching.sums import starts_by_sum
from raypack.errors import SamplerError

_BLOCK = 1_048_576
_SAMPLE = 4_096
_PROBES = 4
_FEWEST_LANES = 100
_LANE_UNIT = 840
_SUMS_FROM = 5
_PREFIXES_FROM = 200


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
    limits = Limits.of(options)
    array = table.array
    pieces: list[NDArray[np.int64]] = []
    first, block = 0, _BLOCK
    while first < len(array):
        part = array[first : first + block]
        starts = _starts(part, limits)
        whole = first + len(part) == len(array)
        if not whole and len(starts) == 1:
            block *= 2
            continue
        # The last batch of a block is open: the next block begins with it.
        pieces.append(starts[1:] + first)
        first = len(array) if whole else int(pieces[-1][-1])
    if len(array):
        pieces.append(np.array([len(array)], np.int64))
    return np.concatenate([np.empty(0, np.int64), *pieces])


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


def _starts(lengths: NDArray[np.int32], limits: Limits) -> NDArray[np.int64]:
    """Return where the batches of (n,) lengths begin, the first at 0; the fastest way that fits them."""
    sample = lengths[:_SAMPLE].tolist()
    starts, _ = walk(sample, limits, Filled())
    if len(lengths) <= _SAMPLE:
        return np.array([0, *starts], np.int64)
    typical = _SAMPLE // (len(starts) + 1)
    if len(lengths) >= _FEWEST_LANES * _LANE_UNIT:
        per_lane = _examples_a_lane(sample, starts, limits, typical)
        if per_lane is not None and len(lengths) >= _FEWEST_LANES * per_lane:
            return batch_starts(lengths, limits, per_lane)
    if not limits.padded and typical >= _SUMS_FROM:
        return starts_by_sum(lengths, limits, typical)
    if typical >= _PREFIXES_FROM:
        return starts_by_prefix(lengths, limits, typical)
    starts, _ = walk(lengths.tolist(), limits, Filled())
    return np.array([0, *starts], np.int64)


def _examples_a_lane(sample: list[int], starts: list[int], limits: Limits, typical: int) -> int | None:
    """Return how long lanes must be for nearly all to meet, None where they do not meet in the sample.

    Paths are begun between the known starts of the sample, to see after how many examples they join.
    Multiples of 840 divide by 1 to 8: batches of equally long examples then meet at once.
    """
    known, slowest = set(starts), 0
    for probe in range(0, _SAMPLE, _SAMPLE // _PROBES):
        first = probe + typical // 2 + 1
        others, _ = walk(sample[first:], limits, Filled())
        met = next((start for start in others if start + first in known), None)
        if met is None:
            return None
        slowest = max(slowest, met)
    return -(-4 * slowest // _LANE_UNIT) * _LANE_UNIT or _LANE_UNIT
