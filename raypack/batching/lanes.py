"""Greedy batches of a long sequence, computed for many stretches of it side by side.

Where a batch begins depends on where the one before it began: a chain. So the sequence is cut into
*lanes* of equal length, and every lane is walked as if a batch began at its first example, one numpy
operation for all lanes at a time. Two chains over the same lengths soon begin a batch at the same
example, and are one from there on: so each lane is walked again from the batch that the lane before it
left open, until it meets its first walk. What never meets is walked alone, by the plain loop.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raypack.batching.limits import Filled, Limits, walk

_STRETCH = 64
_PAD = 0


class LaneWalk:
    """One walk over a table of lanes: (rows, lanes), lane j being column j.

    An open batch is a column of a (2, lanes) state: tokens (the longest when padded) and examples.
    """

    def __init__(self, limits: Limits, dtype: type[np.int32] | type[np.int64]) -> None:
        """Bring the limits to the table's integer type.

        Args:
            limits: What a batch may hold.
            dtype: int32 where no intermediate value can pass it (see `lane_dtype`), else int64.
        """
        self.dtype = dtype
        self._padded = limits.padded
        self._over_budget = dtype(limits.tokens + 1)
        self._sign_shift = dtype(np.iinfo(dtype).bits - 1)
        self._counted = limits.examples <= np.iinfo(dtype).max
        self._most = dtype(limits.examples) if self._counted else dtype(0)

    def run(self, rows: NDArray[np.signedinteger], state: NDArray[np.signedinteger]) -> NDArray[np.bool_]:
        """Walk all lanes from an open batch.

        Args:
            rows: (r, lanes) lengths; row i holds the lanes' i-th examples.
            state: (2, lanes) the open batches; becomes those after the last row.

        Returns:
            (r, lanes) True where a batch begins.
        """
        keep = np.empty_like(rows)
        room = np.empty_like(state[0])
        one = self.dtype(1)
        tokens, examples = state
        for row, kept in zip(rows, keep, strict=True):
            # kept becomes -1 where the example joins the open batch and 0 where it begins one: the sign
            # of (cost - budget - 1), without a branch.
            if self._padded:
                np.maximum(tokens, row, out=tokens)
                np.multiply(tokens, examples, out=kept)
                np.add(kept, tokens, out=kept)
            else:
                np.add(tokens, row, out=kept)
            np.subtract(kept, self._over_budget, out=kept)
            if self._counted:
                np.subtract(examples, self._most, out=room)
                np.bitwise_and(kept, room, out=kept)
            np.right_shift(kept, self._sign_shift, out=kept)
            if self._padded:
                np.subtract(tokens, row, out=tokens)
            np.bitwise_and(tokens, kept, out=tokens)
            np.add(tokens, row, out=tokens)
            if self._padded or self._counted:
                np.bitwise_and(examples, kept, out=examples)
                np.add(examples, one, out=examples)
        return keep == 0


def lane_dtype(limits: Limits) -> type[np.int32] | type[np.int64]:
    """Return the narrowest type that no cost of a batch plus one more example can pass."""
    most = limits.tokens * (limits.tokens + 1) if limits.padded else 2 * limits.tokens
    return np.int32 if most < 2**31 - 1 else np.int64


def batch_starts(lengths: NDArray[np.int32], limits: Limits, per_lane: int) -> NDArray[np.int64]:
    """Return the positions at which a batch begins, the first of them 0.

    Args:
        lengths: (n,) tokens of each example, n >= 1, none above the budget.
        limits: What a batch may hold.
        per_lane: Examples of a lane; 64 batches or more make it likely that lanes meet.
    """
    lanes = -(-len(lengths) // per_lane)
    walker = LaneWalk(limits, lane_dtype(limits))
    padded = np.full(lanes * per_lane, _PAD, walker.dtype)
    padded[: len(lengths)] = lengths
    rows = np.ascontiguousarray(padded.reshape(lanes, per_lane).T)
    starts, left_open, snapshots = _walk_apart(walker, rows)
    came_from = np.zeros_like(left_open)
    came_from[:, 1:] = left_open[:, :-1]
    _walk_joined(walker, rows, came_from, starts, left_open, snapshots)
    _walk_alone(limits, rows, came_from, starts, left_open)
    starts[0, 0] = True
    found = np.flatnonzero(np.ascontiguousarray(starts.T))
    return found[: np.searchsorted(found, len(lengths))]


def _walk_apart(
    walker: LaneWalk, rows: NDArray[np.signedinteger]
) -> tuple[NDArray[np.bool_], NDArray[np.signedinteger], list[NDArray[np.signedinteger]]]:
    """Walk every lane from an empty batch; keep the open batches after each stretch of rows."""
    state = np.zeros((2, rows.shape[1]), rows.dtype)
    starts = np.empty(rows.shape, bool)
    snapshots = []
    for first in range(0, len(rows), _STRETCH):
        part = slice(first, first + _STRETCH)
        starts[part] = walker.run(rows[part], state)
        snapshots.append(state.copy())
    return starts, state, snapshots


def _walk_joined(
    walker: LaneWalk,
    rows: NDArray[np.signedinteger],
    came_from: NDArray[np.signedinteger],
    starts: NDArray[np.bool_],
    left_open: NDArray[np.signedinteger],
    snapshots: list[NDArray[np.signedinteger]],
) -> None:
    """Walk every lane again from ``came_from`` until it meets its first walk; correct the rest in place."""
    active = np.arange(1, rows.shape[1])
    state = came_from[:, 1:].copy()
    for number, snapshot in enumerate(snapshots):
        part = slice(number * _STRETCH, (number + 1) * _STRETCH)
        starts[part, active] = walker.run(rows[part, active], state)
        apart = (state != snapshot[:, active]).any(axis=0)
        active, state = active[apart], np.ascontiguousarray(state[:, apart])
        if not len(active):
            return
    left_open[:, active] = state


def _walk_alone(
    limits: Limits,
    rows: NDArray[np.signedinteger],
    came_from: NDArray[np.signedinteger],
    starts: NDArray[np.bool_],
    left_open: NDArray[np.signedinteger],
) -> None:
    """Walk those lanes alone whose lane before them left another batch open than was thought."""
    used = list(map(tuple, came_from.T.tolist()))
    ends = list(map(tuple, left_open.T.tolist()))
    for lane in range(1, len(used)):
        if used[lane] != ends[lane - 1]:
            positions, filled = walk(rows[:, lane].tolist(), limits, Filled(*ends[lane - 1]))
            starts[:, lane] = False
            starts[positions, lane] = True
            ends[lane] = filled
