"""A run of planned batches, with what a step adds up of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from raypack.batching.greedy import plans_from_ends
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.plan import TokenBatchPlan

Boundary = tuple[int, int]
"""Where a batch ends: a position of the order, and the batches of the window that begins there."""


@dataclass(slots=True)
class Stretch:
    """Batches that follow one another, a list a column."""

    plans: list[TokenBatchPlan] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)
    """Σ length² (packed) or rows · longest² (padded)."""
    supervised: list[int] = field(default_factory=list)
    """Label tokens."""
    ends: list[Boundary] = field(default_factory=list)

    def extend(self, other: Stretch) -> None:
        """Append the batches of another stretch."""
        for own, more in zip(self._columns(), other._columns(), strict=True):
            own.extend(more)

    def drop(self, count: int) -> None:
        """Forget the first batches."""
        for column in self._columns():
            del column[:count]

    def _columns(self) -> tuple[list[Any], ...]:
        return self.plans, self.squares, self.supervised, self.ends


def stretch_of(
    indices: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    ends: npt.NDArray[np.int64],
    boundaries: list[Boundary],
    options: TokenBatchOptions,
    supervised: npt.NDArray[Any] | None,
) -> Stretch:
    """Return the batches of examples that lie batch after batch.

    Args:
        indices: (n,) int64 source indices.
        lengths: (n,) tokens of those examples.
        ends: (batches,) one past the last example of each batch; the last is n.
        boundaries: Where each batch ends in the epoch.
        options: The limits that the batches keep.
        supervised: Label tokens by source index, shape (N,); None is length - 1.
    """
    if not len(ends):
        return Stretch()
    plans = plans_from_ends(indices, lengths, ends, options)
    starts = np.concatenate([[0], ends[:-1]])
    labels = lengths - 1 if supervised is None else supervised[indices]
    return Stretch(
        plans=plans,
        squares=_square_sums(lengths, starts, plans, options),
        supervised=np.add.reduceat(labels, starts, dtype=np.int64).tolist(),
        ends=boundaries,
    )


def _square_sums(
    lengths: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    plans: Sequence[TokenBatchPlan],
    options: TokenBatchOptions,
) -> list[int]:
    """Return Σ length² of each batch, exact for any lengths."""
    if options.layout is TokenBatchLayout.PADDED:
        return [plan.token_slots * plan.maximum_sequence_length for plan in plans]
    wide = lengths.astype(np.int64)
    if int(wide.max()) ** 2 * len(wide) >= 2**63:
        return [int(total) for total in np.add.reduceat(wide.astype(object) ** 2, starts)]
    return list(map(int, np.add.reduceat(wide * wide, starts)))
