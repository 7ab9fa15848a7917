"""Costs and plans of consecutive batches."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raypack.arrays import read_only
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.plan import TokenBatchPlan
from raypack.errors import SamplerError

_HIGH = 2**32


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """The cost of each batch, a column a figure, exact for any lengths."""

    real_tokens: NDArray[np.int64]
    """Σ length."""
    longest: NDArray[np.int64]
    """The greatest length."""
    token_slots: NDArray[np.int64]
    """Σ length (packed), or rows · longest (padded)."""
    squares: list[int]
    """Σ length² (packed), or rows · longest² (padded); Python's integers, they may pass 64 bits."""

    @classmethod
    def of(
        cls, lengths: NDArray[np.int32], ends: NDArray[np.int64], options: TokenBatchOptions
    ) -> BatchFigures:
        """Add up batches.

        Args:
            lengths: (n,) tokens of the examples, batch after batch.
            ends: (batches,) one past each batch's last example, increasing, at most n.
            options: The limits that the batches keep; the layout decides the cost.

        Raises:
            SamplerError: ``ends`` is not strictly increasing within (0, n].
        """
        from raypack.batching.kernels.columns import batch_figures

        totals, longest = np.empty(len(ends), np.int64), np.empty(len(ends), np.int64)
        squares = np.empty((2, len(ends)), np.int64)
        wrong = batch_figures(
            read_only(lengths, np.int32), read_only(ends, np.int64), totals, longest, squares
        )
        if wrong >= 0:
            raise SamplerError(
                f"ends must increase strictly from above 0 to at most {len(lengths)}, "
                f"got {int(ends[wrong])} for batch {wrong}"
            )
        if options.layout is TokenBatchLayout.PADDED:
            slots = np.diff(ends, prepend=0) * longest
            sums = map(operator.mul, slots.tolist(), longest.tolist())
        else:
            slots = totals
            sums = map(operator.add, map(_HIGH.__mul__, squares[0].tolist()), squares[1].tolist())
        return cls(totals, longest, slots, list(sums))

    def plans(self, indices: NDArray[np.int64], ends: NDArray[np.int64]) -> list[TokenBatchPlan]:
        """Return the plans of the batches.

        Args:
            indices: (n,) int64 source indices, batch after batch; the plans hold read-only views of it.
            ends: (batches,) one past each batch's last example.

        Raises:
            SamplerError: there are fewer indices than the last batch needs.
        """
        if len(ends) and ends[-1] > len(indices):
            raise SamplerError(f"indices must be at least {int(ends[-1])}, got {len(indices)}")
        columns = (ends, self.real_tokens, self.longest, self.token_slots)
        return TokenBatchPlan.all_unchecked(indices, *(column.tolist() for column in columns))


def plans_from_ends(
    indices: NDArray[np.int64],
    lengths: NDArray[np.int32],
    ends: NDArray[np.int64],
    options: TokenBatchOptions,
) -> list[TokenBatchPlan]:
    """Return the plans of batches that lie end to end in a sequence; see `BatchFigures`."""
    return BatchFigures.of(lengths, ends, options).plans(indices, ends)
