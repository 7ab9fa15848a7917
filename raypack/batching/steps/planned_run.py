"""A run of consecutive planned batches, with the per-batch numbers that a step sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from raypack.batching.figures import BatchFigures
from raypack.batching.options import TokenBatchOptions
from raypack.batching.plan import TokenBatchPlan

Boundary = tuple[int, int]
"""Where a batch ends: a position of the order, and the batches of the window that begins there."""


@dataclass(slots=True)
class PlannedRun:
    """Batches that follow one another, a list a column."""

    plans: list[TokenBatchPlan] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)
    """Σ length² (packed) or rows · longest² (padded)."""
    supervised: list[int] = field(default_factory=list)
    """Label tokens."""
    ends: list[Boundary] = field(default_factory=list)

    def extend(self, other: PlannedRun) -> None:
        """Append the batches of another stretch."""
        for own, more in zip(self._columns(), other._columns(), strict=True):
            own.extend(more)

    def drop(self, count: int) -> None:
        """Forget the first batches."""
        for column in self._columns():
            del column[:count]

    def _columns(self) -> tuple[list[Any], ...]:
        return self.plans, self.squares, self.supervised, self.ends


def planned_run_of(
    indices: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    ends: npt.NDArray[np.int64],
    boundaries: list[Boundary],
    options: TokenBatchOptions,
    supervised: npt.NDArray[Any] | None,
) -> PlannedRun:
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
        return PlannedRun()
    figures = BatchFigures.of(lengths, ends, options)
    if supervised is None:
        labels = figures.real_tokens - np.diff(ends, prepend=0)
    else:
        labels = np.add.reduceat(supervised[indices], np.append(0, ends[:-1]), dtype=np.int64)
    return PlannedRun(figures.plans(indices, ends), figures.squares, labels.tolist(), boundaries)
