"""Batches from bins: their order, and their examples one batch after the other."""

from __future__ import annotations

from raypack.compiled import Array, compiled


@compiled
def ranks_by_first(bins: Array, ranks: Array) -> int:
    """Write the rank of each bin in the order of their first examples.

    Args:
        bins: (n,) int64 bin of each example.
        ranks: (bins,) int64, written; -1 for a bin without an example.

    Returns:
        The place of the first example of no bin, or -1.
    """
    for number in range(len(ranks)):
        ranks[number] = -1
    following = 0
    for place in range(len(bins)):
        number = bins[place]
        if number < 0 or number >= len(ranks):
            return place
        if ranks[number] < 0:
            ranks[number] = following
            following += 1
    return -1


@compiled
def batch_after_batch(bins: Array, ranks: Array, places: Array, ends: Array) -> int:
    """Write the places of examples, batch after batch and ascending inside each: a counting sort.

    Args:
        bins: (n,) int64 bin of each example.
        ranks: (bins,) int64 batch of each bin, each in [0, bins).
        places: (n,) int64, written.
        ends: (bins,) int64, written: one past each batch's last place.

    Returns:
        The place of the first example of no bin or batch, or -1.
    """
    for batch in range(len(ends)):
        ends[batch] = 0
    for place in range(len(bins)):
        number = bins[place]
        if number < 0 or number >= len(ranks) or ranks[number] < 0 or ranks[number] >= len(ends):
            return place
        ends[ranks[number]] += 1
    start = 0
    for batch in range(len(ends)):
        size = ends[batch]
        ends[batch] = start
        start += size
    for place in range(min(len(bins), len(places))):
        batch = ranks[bins[place]]
        places[ends[batch]] = place
        ends[batch] += 1
    return -1
