"""The figures of batches that lie end to end in a sequence of examples."""

from __future__ import annotations

from raypack.compiled import Array, compiled


@compiled
def batch_figures(lengths: Array, ends: Array, totals: Array, longest: Array, squares: Array) -> int:
    """Write the sum, the maximum and the sum of squares of each batch's lengths.

    Args:
        lengths: (n,) int32 tokens of each example.
        ends: (batches,) int64, one past each batch's last example.
        totals: (batches,) int64, written.
        longest: (batches,) int64, written.
        squares: (2, batches) int64, written: the sum of squares divided by 2**32, and the remainder.

    Returns:
        The number of the first batch that does not end after the one before and within n, or -1.
    """
    start = 0
    for batch in range(len(ends)):
        if ends[batch] <= start or ends[batch] > len(lengths):
            return batch
        total, most, high, low = 0, 0, 0, 0
        for place in range(start, ends[batch]):
            length = lengths[place]
            total += length
            most = max(most, length)
            square = length * length
            high += square >> 32
            low += square & 0xFFFFFFFF
        totals[batch], longest[batch] = total, most
        squares[0, batch], squares[1, batch] = high + (low >> 32), low & 0xFFFFFFFF
        start = ends[batch]
    return -1
