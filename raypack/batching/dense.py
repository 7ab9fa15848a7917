"""Small greedy batches: where a batch would end is found for every example, then the chain is followed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from raypack.batching.jumps import LONGEST, PackedJumps, PaddedJumps, window_maxima
from raypack.batching.limits import Limits

MOST_COUNTED = 48

_BLOCK = 131_072
_PASSES = 100
_LOOK_EVERY = 4
_PACKED_FEW, _PADDED_FEW = 32, 100
_STRIDE_FROM, _STRIDE = 12, 4
_JUMP = 64
_PACKED_REST, _PADDED_REST = 5, 16
_MANY = 6


def ends_by_example(
    lengths: NDArray[np.int32], limits: Limits, typical: int, least: int, full: bool
) -> NDArray[np.int64]:
    """Return where batches end, as far as they are as small as expected.

    Args:
        lengths: (n,) tokens of each example, n >= 1, none above the budget.
        limits: What a batch may hold.
        typical: How many examples a batch may be expected to hold.
        least: How many examples nearly all batches may be expected to hold, 1 at the least.
        full: Whether the number of examples, not the tokens, is expected to close most batches.

    Returns:
        (batches,) int64, n for an open one; empty where nothing was found out.
    """
    all_ends = _all_padded if limits.padded else _all_packed
    pieces, first, small = [np.empty(0, np.int64)], 0, True
    while first < len(lengths) and small:
        part = lengths[first : first + _BLOCK]
        following, small = all_ends(part, limits, typical, min(least, len(part)), full)
        ends = _follow(following, typical) if following is not None else pieces[0]
        ends = ends if first + len(part) == len(lengths) else ends[:-1]
        pieces.append(ends + first)
        first += int(ends[-1]) if len(ends) else len(lengths)
    return np.concatenate(pieces)


def _all_packed(
    lengths: NDArray[np.int32], limits: Limits, typical: int, least: int, full: bool
) -> tuple[NDArray[np.int64], bool]:
    """Return where the packed batch ends that begins at each example, and whether nearly all are small."""
    jumps, size, most = PackedJumps(lengths, limits), len(lengths), limits.examples
    if full and most < size:
        over = jumps.sums[most:] > jumps.full[: size - most + 1]
        ends, rest = _as_if_full(over, most)
    else:
        ends, rest = _count_packed(jumps, limits, _STRIDE if typical >= _STRIDE_FROM else 1)
    ends[rest] = jumps.ends(rest)
    return ends, len(rest) * _PACKED_REST < size


def _all_padded(
    lengths: NDArray[np.int32], limits: Limits, typical: int, least: int, full: bool
) -> tuple[NDArray[np.int64] | None, bool]:
    """Return the same for padded batches; None where not nearly all are small."""
    size, most = len(lengths), limits.examples
    if full and most < size:
        ends, rest = _as_if_full(window_maxima(lengths, most) > _longest(limits, most), most)
        counted = typical
    else:
        ends, rest, counted = _count_padded(lengths, limits, typical, least)
    if len(rest) * _PADDED_REST > size:
        return None, False
    if len(rest):
        exact = PaddedJumps(lengths, limits, counted).ends(rest)
        if exact is None:
            return None, False
        ends[rest] = exact
    return ends, True


def _as_if_full(over: NDArray[np.bool_], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ends as if every batch held ``most`` examples, and where it does not."""
    size = len(over) + most - 1
    return np.arange(most, size + most), np.append(np.flatnonzero(over), np.arange(len(over), size))


def _count_packed(
    jumps: PackedJumps, limits: Limits, stride: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ends of packed batches, and where these hold more than was looked at.

    With a stride, numbers of examples that divide by it are looked at first.
    """
    size, sums, full, most = jumps.size, jumps.sums, jumps.full, limits.examples
    counts = np.zeros(size, np.uint8)
    fits = np.ones(size, bool)
    count = 0
    while count + stride <= min(_PASSES * stride, most, size):
        count += stride
        fits = fits[: size - count + 1]
        np.less_equal(sums[count:], full[: len(fits)], out=fits)
        counted = counts[: len(fits)]
        np.add(counted, fits.view(np.uint8), out=counted)
        if count % (_LOOK_EVERY * stride) == 0 and np.count_nonzero(fits) * _PACKED_FEW < size:
            break
    ends = np.arange(size)
    ends += counts if stride == 1 else counts * np.int64(stride)
    rest = fits[:0] if count + stride > most else fits
    while stride > 1:
        stride //= 2
        ends += (sums.take(ends + stride, mode="clip") <= full) * np.int64(stride)
    if most < size:
        np.minimum(ends, np.arange(most, size + most), out=ends)
    return np.minimum(ends, size, out=ends), np.flatnonzero(rest)


def _count_padded(
    lengths: NDArray[np.int32], limits: Limits, typical: int, least: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the ends of padded batches, where these are not known, and how many examples were looked at.

    Nearly all batches are taken to hold ``least`` examples; those that hold fewer are not known.
    """
    size, count = len(lengths), least
    narrow = int(lengths.max()) < 2**15
    single: NDArray[Any] = lengths.astype(np.int16) if narrow else lengths
    most = 2**15 - 1 if narrow else LONGEST
    longest = window_maxima(single, least)
    fits = longest <= min(_longest(limits, least), most)
    fewer = np.append(np.flatnonzero(~fits), np.arange(len(fits), size))
    counts = np.zeros(size, np.uint8)
    while count < min(least + _PASSES, limits.examples, size):
        count += 1
        fits = fits[: size - count + 1]
        grown = longest[: len(fits)]
        np.maximum(grown, single[count - 1 :], out=grown)
        np.less_equal(grown, min(_longest(limits, count), most), out=fits)
        counted = counts[: len(fits)]
        np.add(counted, fits.view(np.uint8), out=counted)
        if count % _LOOK_EVERY == 0:
            left = np.count_nonzero(fits)
            if left * _PADDED_FEW < size or (count > 4 * typical + 8 and left * _MANY > size):
                break
    more = np.flatnonzero(fits[:0] if count == limits.examples else fits)
    ends = np.arange(least, size + least)
    ends += counts
    return ends, np.append(fewer, more), count


def _longest(limits: Limits, examples: int) -> int:
    """Return the longest length that a padded batch of so many examples may have."""
    return min(limits.tokens // examples, LONGEST)


def _follow(ends: NDArray[np.int64], typical: int) -> NDArray[np.int64]:
    """Return where the batches end that follow one another from the first example on.

    The chain is walked in strides of many batches, found by following ``ends`` through itself; what lies
    between is then filled in for all strides at once.
    """
    size = len(ends)
    strides = [np.append(ends, size)]
    reach = typical
    while reach < _JUMP:
        strides.append(strides[-1].take(strides[-1]))
        reach *= 2
    jump, position, walked = strides[-1].data, 0, []
    while position < size:
        walked.append(position)
        position = jump[position]
    starts = np.array(walked, np.int64)
    for stride in strides[-2::-1]:
        pairs = np.empty((len(starts), 2), np.int64)
        pairs[:, 0], pairs[:, 1] = starts, stride.take(starts)
        starts = pairs.ravel()
    found = strides[0].take(starts)
    return found[: found.searchsorted(size) + 1]
