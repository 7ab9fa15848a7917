"""Jumps over a stretch of lengths: where the batches end that begin at many positions at once."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from raypack.batching.limits import Limits

LONGEST = 2**31 - 1

_Length = TypeVar("_Length", np.int16, np.int32)

_CHUNK = 65_536
_GROUP = 4
_SMALL_TABLE = 2_048
_WIDER = 8
_WIDE_CALLS = 4
_WIDENINGS = 1


class PackedJumps:
    """One search in the running sum of the lengths for each batch."""

    def __init__(self, lengths: NDArray[np.int32], limits: Limits) -> None:
        """Add the lengths up.

        Args:
            lengths: (n,) tokens of each example, none above the budget.
            limits: What a batch may hold.
        """
        self.size = len(lengths)
        sums = np.zeros(self.size + 1, np.int64)
        np.cumsum(lengths, out=sums[1:])
        narrow = int(sums[-1]) + limits.tokens <= LONGEST
        self.sums: NDArray[np.signedinteger] = sums.astype(np.int32) if narrow else sums
        self.full = self.sums[:-1] + self.sums.dtype.type(limits.tokens)
        self._most = limits.examples

    def ends(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the batches end that begin at (p,) positions; ``size`` where one is left open."""
        ends = self.sums.searchsorted(self.full.take(positions), "right")
        ends -= 1
        return np.minimum(ends, positions + self._most, out=ends) if self._most < self.size else ends


class PaddedJumps:
    """Longest lengths of whole blocks as far as these fit, then of single examples.

    ``calls`` counts the work: calls of `ends`, those with far larger batches than expected many times.
    """

    def __init__(
        self, lengths: NDArray[np.int32], limits: Limits, typical: int, widenings: int = _WIDENINGS
    ) -> None:
        """Find the longest length of each block, wherever it begins.

        Args:
            lengths: (n,) tokens of each example, none above the budget.
            limits: What a batch may hold.
            typical: How many examples a batch may be expected to hold.
            widenings: How often batches may turn out to be `_WIDER` times as large as that.
        """
        self.size = len(lengths)
        self.lengths, self.limits = lengths, limits
        self._typical, self._widenings = typical, widenings
        self._wider: PaddedJumps | None = None
        self.calls = 0
        self._block = block = max(_GROUP, 1 << (typical.bit_length() // 2 + 1))
        columns = _GROUP * (3 * typical // (block * _GROUP) + 1)
        beyond = np.full(block, LONGEST, np.int32)
        self._single = np.concatenate([lengths, beyond])
        self._blocks = window_maxima(self._single, block)
        self._steps = np.arange(0, block * columns, block)[:, None]
        self._longest_of = longest_of(block * (columns + 1), limits)
        self._longest_of_blocks = self._longest_of[self._steps + block]
        self._single_steps = np.arange(block)[:, None]

    def ends(self, positions: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return where the batches end that begin at (p,) positions; ``size`` where one is left open.

        None is the refusal to go on: batches are far larger than was expected.
        """
        self.calls += 1
        # Beyond the stretch all is as long as can be: a batch that fits even that is open in any case.
        maxima = self._blocks.take(positions + self._steps, mode="clip")
        _accumulate(maxima)
        fits = maxima <= self._longest_of_blocks
        counts = _count(fits)
        counts *= self._block
        ends = positions + counts
        if fits[-1].any():
            return self._with_large(positions, ends, fits[-1])
        maxima *= fits
        singles = self._single.take(ends + self._single_steps, mode="clip")
        np.maximum(singles[0], np.maximum.reduce(maxima, axis=0), out=singles[0])
        _accumulate(singles)
        counts += 1
        ends += _count(singles <= self._longest_of.take(counts + self._single_steps))
        return np.minimum(ends, self.size, out=ends)

    def _with_large(
        self, positions: NDArray[np.int64], ends: NDArray[np.int64], large: NDArray[np.bool_]
    ) -> NDArray[np.int64] | None:
        """Return the ends where some batches are larger than the columns."""
        if not self._widenings:
            return None
        if self._wider is None:
            typical = _WIDER * self._typical
            self._wider = PaddedJumps(self.lengths, self.limits, typical, self._widenings - 1)
        self.calls += _WIDE_CALLS
        wide = self._wider.ends(positions[large])
        rest = self.ends(positions[~large])
        if wide is None or rest is None:
            return None
        ends[large], ends[~large] = wide, rest
        return ends


def longest_of(most: int, limits: Limits) -> NDArray[np.int32]:
    """Return the longest length that batches of 0 to ``most`` examples may have, 0 for too many examples."""
    longest = np.minimum(limits.tokens // np.maximum(np.arange(most + 1), 1), LONGEST).astype(np.int32)
    longest[limits.examples + 1 :] = 0
    return longest


def _accumulate(table: NDArray[np.int32]) -> None:
    """Make each row of (rows, columns) the greatest of those up to it, in groups of rows."""
    if table.size < _SMALL_TABLE:
        np.maximum.accumulate(table, axis=0, out=table)
        return
    groups = table.reshape(-1, _GROUP, table.shape[1])
    for row in range(1, _GROUP):
        np.maximum(groups[:, row], groups[:, row - 1], out=groups[:, row])
    for group in range(1, len(groups)):
        np.maximum(groups[group], groups[group - 1, -1], out=groups[group])


def _count(fits: NDArray[np.bool_]) -> NDArray[np.int64]:
    small = np.int8 if len(fits) < 128 else np.int32
    return np.add.reduce(fits.view(np.int8), axis=0, dtype=small).astype(np.int64)


def window_maxima(lengths: NDArray[_Length], width: int) -> NDArray[_Length]:
    """Return the greatest of the ``width`` lengths from each position on, (n - width + 1,)."""
    found = np.empty(len(lengths) - width + 1, lengths.dtype)
    for first in range(0, len(found), _CHUNK):
        maxima, reach = lengths[first : first + _CHUNK + width - 1], 1
        while reach < width:
            step = min(reach, width - reach)
            maxima = np.maximum(maxima[:-step], maxima[step:])
            reach += step
        found[first : first + _CHUNK] = maxima
    return found
