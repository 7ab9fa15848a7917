"""Padded greedy batches of a long stretch, found for many parts of it side by side.

Where a batch begins depends on where the one before it began: a chain. So the stretch is cut into
*lanes* of equal length, and every lane is walked as if a batch began at its first example, one batch of
every lane at a time. Two chains over the same lengths soon begin a batch at the same example, and are
one from there on: so each lane is walked again from where the lane before it really arrives, until it
meets its first walk; and again, where that made a lane arrive elsewhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raypack.batching.jumps import PaddedJumps

_HOPELESS, _FEW = 0.7, 8


class _TooLongError(Exception):
    """The walk takes more steps than it saves."""


class _Lanes:
    """The lanes of a stretch: which positions begin a batch, and where each lane's chain leaves it."""

    def __init__(self, jumps: PaddedJumps, per_lane: int, patience: int) -> None:
        self._jumps = jumps
        self._patience = patience
        self.first = np.arange(0, jumps.size, per_lane)
        self.stop = np.append(self.first[1:], jumps.size)
        self.begins = np.zeros(jumps.size, bool)
        self.arrives = self.stop.copy()

    def walk(self, lanes: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Walk lanes from positions in them until each meets its former walk or leaves its lane.

        Returns:
            The lanes, of those, that now arrive elsewhere.
        """
        before = self.arrives[lanes]
        walked, all_lanes = [], lanes
        met = self.stop.copy()
        stop = self.stop[lanes]
        while True:
            new = positions < stop
            new &= ~self.begins.take(positions, mode="clip")
            if not new.all():
                self._leave(lanes[~new], positions[~new], met)
                lanes, positions, stop = lanes[new], positions[new], stop[new]
            if not len(lanes):
                break
            walked.append(positions)
            positions = self._next(positions)
        for lane in all_lanes.tolist():
            self.begins[self.first[lane] : met[lane]] = False
        if walked:
            self.begins[np.concatenate(walked)] = True
        return all_lanes[self.arrives[all_lanes] != before]

    def _leave(self, lanes: NDArray[np.int64], positions: NDArray[np.int64], met: NDArray[np.int64]) -> None:
        """Note where a walk met the former one, or where it left its lane."""
        left = positions >= self.stop[lanes]
        self.arrives[lanes[left]] = positions[left]
        met[lanes] = np.minimum(positions, self.stop[lanes])

    def _next(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        ends = self._jumps.ends(positions) if self._jumps.calls < self._patience else None
        if ends is None:
            raise _TooLongError
        return ends


def ends_by_lanes(jumps: PaddedJumps, per_lane: int, patience: int) -> NDArray[np.int64]:
    """Return where batches end, as far as the lanes came together.

    Args:
        jumps: The stretch.
        per_lane: Examples of a lane.
        patience: How many steps, of a batch in every lane, to walk at the most.

    Returns:
        (batches,) int64, empty where nothing was found out; the size of the stretch for an open batch.
    """
    lanes = _Lanes(jumps, per_lane, patience)
    last = len(lanes.first) - 1
    try:
        lanes.walk(np.arange(last + 1), lanes.first)
        changed = np.arange(last)
        while len(changed):
            # Lanes that a batch reaches over altogether pass its end on.
            again = lanes.walk(changed + 1, lanes.arrives[changed])
            if len(again) > max(_HOPELESS * len(changed), _FEW):
                break
            changed = again[again < last]
    except _TooLongError:
        return np.empty(0, np.int64)
    settled = int(changed[0]) if len(changed) else last
    starts = np.flatnonzero(lanes.begins[: lanes.stop[settled]])
    return np.append(starts[1:], lanes.arrives[settled])
