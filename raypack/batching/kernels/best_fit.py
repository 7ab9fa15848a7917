"""Best-fit decreasing: the longest example first, each into the fullest bin that still holds it.

Bins are grouped by free space ("room"): class c holds the bins whose room is at least the c-th of the
distinct lengths and below the next. A length fits the bins of its own class and of all above, so the
best bin is the fullest of the first class that is not empty: a bitmap finds the class, a heap per class
(`_joined`, which holds the tie rule) the bin. That is exact, and its speed does not depend on the budget.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raypack.compiled import Array, compiled

_DIGIT = 12
_ONE, _ALL = np.uint64(1), np.uint64(2**64 - 1)
_DE_BRUIJN = 0x03F79D71B4CB0A89
_LOWEST_BIT = np.zeros(64, np.uint8)
for _number in range(64):
    _LOWEST_BIT[(_DE_BRUIJN << _number) % 2**64 >> 58] = _number


@compiled
def longest_first(lengths: Array, budget: int, order: Array) -> int:
    """Write the positions of the examples, sorted by length, longest first; a stable sort.

    A radix sort by digits of 12 bits.

    Args:
        lengths: (n,) int32 tokens of each example.
        budget: The greatest length allowed.
        order: (n,) int64, written.

    Returns:
        The place of the first length outside [1, budget], or -1.
    """
    count = min(len(lengths), len(order))
    least, most = budget, 1
    for place in range(count):
        if lengths[place] < 1 or lengths[place] > budget:
            return place
        least, most = min(least, lengths[place]), max(most, lengths[place])
        order[place] = place
    starts = np.empty((1 << _DIGIT) + 1, np.int64)
    sorted_order = np.empty(count if most - least >> _DIGIT else 0, np.int64)
    for shift in range(0, 32, _DIGIT):
        if shift and not most - least >> shift:
            break
        for digit in range(len(starts)):
            starts[digit] = 0
        for place in range(count):
            starts[((most - lengths[place]) >> shift & ((1 << _DIGIT) - 1)) + 1] += 1
        for digit in range(1 << _DIGIT):
            starts[digit + 1] += starts[digit]
        if shift:
            for rank in range(count):
                place = order[rank]
                digit = (most - lengths[place]) >> shift & ((1 << _DIGIT) - 1)
                sorted_order[starts[digit]] = place
                starts[digit] += 1
            for rank in range(count):
                order[rank] = sorted_order[rank]
        else:
            for place in range(count):
                digit = (most - lengths[place]) & ((1 << _DIGIT) - 1)
                order[starts[digit]] = place
                starts[digit] += 1
    return -1


@compiled
def best_fit_decreasing(lengths: Array, budget: int, most: int, bins: Array) -> tuple[int, int]:
    """Write the bin of each example.

    Among equal lengths the earlier example goes first, among bins with equal room the earlier bin.

    Args:
        lengths: (n,) int32 tokens of each example.
        budget: The most tokens of a bin, up to 2**62.
        most: The most examples of a bin, at least 1.
        bins: (n,) int64, written.

    Returns:
        The number of bins, and the place of the first length outside [1, budget], or -1.
    """
    count = min(len(lengths), len(bins))
    order = np.empty(count, np.int64)
    wrong = longest_first(lengths, budget, order)
    if wrong >= 0 or count == 0:
        return 0, wrong
    sizes, runs = _distinct(lengths, order)
    words, offsets = _empty_bitmap(len(sizes))
    tops = np.empty(len(sizes), np.int64)
    for size in range(len(sizes)):
        tops[size] = -1
    rooms, held = np.empty(count, np.int64), np.empty(count, np.int64)
    children, siblings = np.empty(count, np.int64), np.empty(count, np.int64)
    opened, rank = 0, 0
    for size in range(len(sizes) - 1, -1, -1):
        length = sizes[size]
        while rank < runs[size]:
            found = _next_bit(words, offsets, size)
            if found < 0:
                number, room, examples = opened, budget, 0
                opened += 1
            else:
                number = tops[found]
                room, examples = rooms[number], held[number]
                tops[found] = _without_top(number, rooms, children, siblings)
                if tops[found] < 0:
                    _clear_bit(words, offsets, found)
            while rank < runs[size] and room >= length and examples < most:
                bins[order[rank]] = number
                rank += 1
                room -= length
                examples += 1
            rooms[number], held[number] = room, examples
            if room >= sizes[0] and examples < most:
                at = _class_of(room, sizes)
                children[number] = siblings[number] = -1
                if tops[at] < 0:
                    tops[at] = number
                    _set_bit(words, offsets, at)
                else:
                    tops[at] = _joined(tops[at], number, rooms, children, siblings)
    return opened, -1


@compiled
def _distinct(lengths: Array, order: Array) -> tuple[Array, Array]:
    """Return the distinct lengths, ascending, and where in ``order``, longest first, each one's run ends."""
    count = 1
    for rank in range(1, len(order)):
        count += lengths[order[rank]] != lengths[order[rank - 1]]
    sizes, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    size = count
    for rank in range(len(order)):
        if rank == 0 or lengths[order[rank]] != sizes[size]:
            size -= 1
            sizes[size] = lengths[order[rank]]
        ends[size] = rank + 1
    return sizes, ends


@compiled
def _class_of(room: int, sizes: Array) -> int:
    """Return the number of the greatest size that is at most ``room``, which is at least the first."""
    low, high = 0, len(sizes)
    while high - low > 1:
        middle = (low + high) >> 1
        if sizes[middle] <= room:
            low = middle
        else:
            high = middle
    return low


@compiled
def _joined(one: int, other: int, rooms: Array, children: Array, siblings: Array) -> int:
    """Join two pairing heaps; return the top: the bin with less room, on a tie the earlier one."""
    if rooms[other] < rooms[one] or (rooms[other] == rooms[one] and other < one):
        one, other = other, one
    siblings[other] = children[one]
    children[one] = other
    return one


@compiled
def _without_top(top: int, rooms: Array, children: Array, siblings: Array) -> int:
    """Return the top of a pairing heap without its top, or -1."""
    pairs, heap = -1, children[top]
    while heap >= 0:
        other = siblings[heap]
        following = -1
        if other >= 0:
            following = siblings[other]
            heap = _joined(heap, other, rooms, children, siblings)
        siblings[heap] = pairs
        pairs, heap = heap, following
    joined = -1
    while pairs >= 0:
        following = siblings[pairs]
        joined = pairs if joined < 0 else _joined(joined, pairs, rooms, children, siblings)
        pairs = following
    return joined


@compiled
def _empty_bitmap(size: int) -> tuple[Array, Array]:
    """Return a bitmap in levels of words, each of which says what words of the level below hold a bit.

    Returns:
        The words of all levels, and where each level begins; the last entry is their number.
    """
    offsets = np.zeros(13, np.int64)
    levels = 0
    while True:
        size = (size + 63) >> 6
        offsets[levels + 1] = offsets[levels] + size
        levels += 1
        if size <= 1:
            return np.zeros(offsets[levels], np.uint64), offsets[: levels + 1]


@compiled
def _set_bit(words: Array, offsets: Array, bit: int) -> None:
    for level in range(len(offsets) - 1):
        at = offsets[level] + (bit >> 6)
        before = words[at]
        words[at] = before | _ONE << np.uint64(bit & 63)
        if before:
            break
        bit >>= 6


@compiled
def _clear_bit(words: Array, offsets: Array, bit: int) -> None:
    for level in range(len(offsets) - 1):
        at = offsets[level] + (bit >> 6)
        words[at] &= ~(_ONE << np.uint64(bit & 63))
        if words[at]:
            break
        bit >>= 6


@compiled
def _next_bit(words: Array, offsets: Array, bit: int) -> int:
    """Return the first bit that is set from ``bit`` on, or -1."""
    for level in range(len(offsets) - 1):
        at = offsets[level] + (bit >> 6)
        if at >= offsets[level + 1]:
            return -1
        word = words[at] & _ALL << np.uint64(bit & 63)
        if word:
            found = (bit >> 6) << 6 | _lowest_bit(word)
            for below in range(level - 1, -1, -1):
                found = found << 6 | _lowest_bit(words[offsets[below] + found])
            return found
        bit = (bit >> 6) + 1
    return -1


@compiled
def _lowest_bit(word: Any) -> Any:
    """Return the number of the lowest bit that is set in a word of 64 bits (Leiserson et al. 1998)."""
    return np.int64(_LOWEST_BIT[(word & (~word + _ONE)) * np.uint64(_DE_BRUIJN) >> np.uint64(58)])
