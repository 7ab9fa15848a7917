"""Greedy batches: each example joins the open batch, or closes it and begins the next."""

from __future__ import annotations

from raypack.compiled import Array, compiled


@compiled
def packed_ends(lengths: Array, start: int, budget: int, most: int, ends: Array) -> tuple[int, int]:
    """Write where batches end whose cost is the sum of their lengths.

    Args:
        lengths: (n,) int32 tokens of each example.
        start: The first example of the first batch.
        budget: Tokens of a batch at the most, up to 2**62.
        most: Examples of a batch at the most.
        ends: (m,) int64, written: one past the last example of each batch, n for the open one.

    Returns:
        How many ends were found, m at the most, and the place of the first length outside
        [1, budget], where it stopped, or -1.
    """
    tokens, examples, found = 0, 0, 0
    for place in range(start, len(lengths) if len(ends) else start):
        length = lengths[place]
        if length < 1 or length > budget:
            return found, place
        tokens += length
        examples += 1
        if tokens > budget or examples > most:
            ends[found] = place
            found += 1
            if found == len(ends):
                return found, -1
            tokens, examples = length, 1
    if examples:
        ends[found] = len(lengths)
        found += 1
    return found, -1


@compiled
def padded_ends(lengths: Array, start: int, budget: int, most: int, ends: Array) -> tuple[int, int]:
    """Write where batches end whose cost is the number of rows times the longest; see `packed_ends`.

    ``most`` is below 2**32, so that the cost fits 64 bits.
    """
    longest, examples, found = 0, 0, 0
    for place in range(start, len(lengths) if len(ends) else start):
        length = lengths[place]
        if length < 1 or length > budget:
            return found, place
        longest = max(longest, length)
        examples += 1
        if longest * examples > budget or examples > most:
            ends[found] = place
            found += 1
            if found == len(ends):
                return found, -1
            longest, examples = length, 1
    if examples:
        ends[found] = len(lengths)
        found += 1
    return found, -1
