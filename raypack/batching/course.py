"""The way through a sequence of lengths: each stretch in the fastest way that suits what it begins with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raypack.batching.dense import MOST_COUNTED, ends_by_example
from raypack.batching.jumps import PaddedJumps
from raypack.batching.lanes import ends_by_lanes
from raypack.batching.limits import Filled, Limits, walk
from raypack.batching.search import ends_by_prefix, ends_by_sum, prefix

_STRETCH = 1_048_576
_SAMPLE = 2_048
_SLOW_STRETCH = 65_536
_FULL, _DENSE_AT_MOST = 0.9, 1_024
_PADDED_DENSE_BELOW, _LANES_BELOW, _ALIKE = 16, 1_000, 40
_PACKED_DENSE_BELOW, _SUMS_BELOW = 48, 1_000
_LANE_BATCHES = 48
_STEP = 250
_LARGE, _LONG = 200, 1_024


class Course:
    """One pass over a sequence; what a way leaves over is walked by the plain loop."""

    def __init__(self, lengths: NDArray[np.int32], limits: Limits) -> None:
        """Begin at the first example.

        Args:
            lengths: (n,) tokens of each example, none above the budget.
            limits: What a batch may hold.
        """
        self._lengths, self._limits = lengths, limits
        self._lanes_from = 0

    def ends(self) -> NDArray[np.int64]:
        """Return where each batch ends, (batches,); the last is n."""
        pieces = [np.empty(0, np.int64)]
        first, examples = 0, _SAMPLE
        while first < len(self._lengths):
            walked = self._walk(first, examples)
            pieces.append(walked + first)
            first += int(walked[-1])
            planned = self._plan(first, walked) if first < len(self._lengths) else walked[:0]
            pieces.append(planned + first)
            gained = int(planned[-1]) if len(planned) else 0
            first += gained
            # A way that does not suit costs little beside the walk that follows it.
            slow = max(_SLOW_STRETCH, min(2 * examples, _STRETCH))
            examples = _SAMPLE if gained >= _SLOW_STRETCH else slow
        return np.concatenate(pieces)

    def _walk(self, first: int, examples: int) -> NDArray[np.int64]:
        """Return where the batches from ``first`` on end by the plain loop, one at the least."""
        part = self._lengths[first : first + examples]
        ends, _ = walk(part.tolist(), self._limits, Filled())
        if first + len(part) == len(self._lengths):
            ends.append(len(part))
            return np.array(ends, np.int64)
        start = ends[-1] if ends else 0
        if not ends or len(part) - start > _LONG:  # what is long is not walked twice
            ends.append(start + prefix(self._lengths[first + start :], self._limits, len(part) - start))
        return np.array(ends, np.int64)

    def _plan(self, first: int, walked: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the batches of the stretch from ``first`` on end, as far as that is found out."""
        part = self._lengths[first : first + _STRETCH]
        ends = self._way(first, part, np.diff(walked, prepend=0))
        whole = first + len(part) == len(self._lengths)
        # The last batch of a stretch is open: the next stretch begins with it.
        return ends if whole or not len(ends) or ends[-1] < len(part) else ends[:-1]

    def _way(self, first: int, part: NDArray[np.int32], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        limits = self._limits
        typical, smallest, largest = int(sizes.sum()) // len(sizes), int(sizes.min()), int(sizes.max())
        least = max(1, 3 * smallest // 4, smallest - _ALIKE)
        full = bool(np.count_nonzero(sizes == limits.examples) > _FULL * len(sizes))
        small = typical < (_PADDED_DENSE_BELOW if limits.padded else _PACKED_DENSE_BELOW)
        # Lanes do not meet where batches are all about as large; those are soon counted for each example.
        alike = limits.padded and len(sizes) > 1 and largest - smallest < _ALIKE
        ends = np.empty(0, np.int64)
        if small or limits.examples <= MOST_COUNTED or ((full or alike) and typical < _DENSE_AT_MOST):
            ends = ends_by_example(part, limits, typical, least, full)
        if not len(ends) and limits.padded and _PADDED_DENSE_BELOW <= typical < _LANES_BELOW:
            ends = self._by_lanes(first, part, typical)
            if not len(ends) and not alike and largest - least < 2 * _ALIKE:
                ends = ends_by_example(part, limits, typical, least, full)
        if not len(ends) and not limits.padded and _PACKED_DENSE_BELOW <= typical < _SUMS_BELOW:
            ends = ends_by_sum(part, limits, typical)
        if not len(ends) and typical >= _LARGE:
            ends = ends_by_prefix(part, limits, typical)
        return ends

    def _by_lanes(self, first: int, part: NDArray[np.int32], typical: int) -> NDArray[np.int64]:
        per_lane = _LANE_BATCHES * typical
        # As many steps as take a fifth of the plain loop's time, where nothing comes of them.
        patience = len(part) // (5 * (_STEP + len(part) // per_lane))
        if first < self._lanes_from or patience < 2 * _LANE_BATCHES:
            return np.empty(0, np.int64)
        ends = ends_by_lanes(PaddedJumps(part, self._limits, typical), per_lane, patience)
        if not len(ends) or ends[-1] < len(part) // 4:
            self._lanes_from = first + len(part)
            return np.empty(0, np.int64)
        return ends
