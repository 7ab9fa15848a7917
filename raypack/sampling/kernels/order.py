"""Keyed bijections at any position: a Feistel network with cycle walking, and the block shuffle made of it.

Positions are taken a thousand at a time, one round after the other, so that a round is a loop over
small arrays without a branch. All arithmetic is on unsigned integers that wrap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raypack.compiled import Array, compiled

_CHUNK = 1_024
_FINISH = np.uint32(0x9E3779B1)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BLOCK_BITS, _WINDOW_BITS = 10, 16


@compiled
def walk(positions: Array, tweaks: Array, size: int, keys: Array, backward: bool, images: Array) -> int:
    """Write the image of each position under a network, which is applied again until it is below ``size``.

    Args:
        positions: (n,) int64 in [0, size).
        tweaks: (n,) uint32, which of 2**32 networks each position takes; (0,) is 0 for all.
        size: N, at most 2**bits.
        keys: (rounds + 1, 2) uint32: the width of the left and the right half in bits, then a factor
            and a term for each round.
        backward: Whether to write the position of each image instead.
        images: (n,) int64, written; may be ``positions``.

    Returns:
        The place of the first position outside [0, size), or -1.
    """
    left, right = np.empty(_CHUNK, np.uint32), np.empty(_CHUNK, np.uint32)
    chosen, places = np.zeros(_CHUNK, np.uint32), np.empty(_CHUNK, np.int64)
    values = np.empty(_CHUNK, np.int64)
    total = min(len(positions), len(images))
    for first in range(0, total, _CHUNK):
        count = min(_CHUNK, total - first)
        part = images[first : first + count]
        for k in range(count):
            part[k] = positions[first + k]
        wrong = _outside(part, size)
        if wrong >= 0:
            return first + wrong
        if len(tweaks) >= first + count:
            for k in range(count):
                chosen[k] = tweaks[first + k]
        _apply(part, left, right, chosen, keys, backward)
        walking = 0
        for k in range(count):
            places[walking] = k
            walking += part[k] >= size
        while walking:
            for k in range(walking):
                values[k] = part[places[k]]
                if len(tweaks) >= first + count:
                    chosen[k] = tweaks[first + places[k]]
            _apply(values[:walking], left, right, chosen, keys, backward)
            count, walking = walking, 0
            for k in range(count):
                part[places[k]] = values[k]
                places[walking] = places[k]
                walking += values[k] >= size
    return -1


@compiled
def block_order(
    positions: Array,
    size: int,
    keys: Array,
    tweak: Any,
    short_slot: int,
    windows: Array,
    tables: Array,
    slots: Array,
    offsets: Array,
) -> int:
    """Write the slot and the place in its block of each position, after the shuffle of its window.

    Args:
        positions: (n,) int64 in [0, size).
        size: N.
        keys: The network of 16 bits that shuffles a full window; see `walk`.
        tweak: Added to a window's number before it is hashed to a tweak, 64 bits.
        short_slot: The slot of the source's last block, which may be short.
        windows: (k,) int64, the first position of each window that may be short.
        tables: (k, 65536) int64, the shuffles of those windows.
        slots: (n,) int64, written: the position's block, counted in the order of blocks.
        offsets: (n,) int64, written: the position's place in that block.

    Returns:
        The place of the first position outside [0, size), or -1.
    """
    left, right = np.empty(_CHUNK, np.uint32), np.empty(_CHUNK, np.uint32)
    chosen, bases = np.empty(_CHUNK, np.uint32), np.empty(_CHUNK, np.int64)
    values = np.empty(_CHUNK, np.int64)
    missing = -size % (1 << _BLOCK_BITS)
    full_from = ((short_slot + 1) << _BLOCK_BITS) - missing
    short_window = short_slot << _BLOCK_BITS >> _WINDOW_BITS
    total = min(len(positions), len(slots), len(offsets))
    window, mixed = -1, np.uint32(0)
    for first in range(0, total, _CHUNK):
        count = min(_CHUNK, total - first)
        part = positions[first : first + count]
        wrong = _outside(part, size)
        if wrong >= 0:
            return first + wrong
        lowest, highest = size, 0
        for k in range(count):
            own = (part[k] + missing * (part[k] >= full_from)) >> _WINDOW_BITS
            if own != window:
                window, mixed = own, _tweak_of(own, tweak)
            bases[k] = (window << _WINDOW_BITS) - missing * (window > short_window)
            lowest, highest = min(lowest, bases[k]), max(highest, bases[k])
            values[k] = part[k] - bases[k]
            chosen[k] = mixed
        _apply(values[:count], left, right, chosen, keys, False)
        for short in range(len(windows)):
            if lowest <= windows[short] <= highest:
                for k in range(count):
                    if bases[k] == windows[short]:
                        values[k] = tables[short, part[k] - bases[k]]
        for k in range(count):
            value = bases[k] + values[k]
            value += missing * (value >= full_from)
            slots[first + k] = value >> _BLOCK_BITS
            offsets[first + k] = value & ((1 << _BLOCK_BITS) - 1)
    return -1


@compiled
def _outside(positions: Array, size: int) -> int:
    """Return the place of the first position outside [0, size), or -1."""
    outside = False
    for place in range(len(positions)):
        outside |= (positions[place] < 0) | (positions[place] >= size)
    if outside:
        for place in range(len(positions)):
            if positions[place] < 0 or positions[place] >= size:
                return place
    return -1


@compiled
def _apply(values: Array, left: Array, right: Array, tweaks: Array, keys: Array, backward: bool) -> None:
    """Replace each value by its image: the halves are hashed with a key and added to the other, in turn."""
    bits = np.int64(keys[0, 1])
    for k in range(len(values)):
        left[k] = np.uint32(values[k] >> bits)
        right[k] = np.uint32(values[k] & ((1 << bits) - 1))
    rounds = len(keys) - 1
    for step in range(rounds):
        number = rounds - step if backward else step + 1
        factor, term = keys[number, 0], keys[number, 1]
        if number % 2:
            _round(right, left, 32 - keys[0, 0], tweaks, len(values), factor, term)
        else:
            _round(left, right, 32 - keys[0, 1], tweaks, len(values), factor, term)
    for k in range(len(values)):
        values[k] = np.int64(left[k]) << bits | np.int64(right[k])


@compiled
def _round(
    source: Array, target: Array, shift: int, tweaks: Array, count: int, factor: Any, term: Any
) -> None:
    """Hash one half (multiply, add, fold, multiply; the top bits of the product) and add it to the other."""
    for k in range(count):
        mixed = np.uint32(np.uint32(np.uint32(source[k] * factor) + term) + tweaks[k])
        mixed = np.uint32((mixed ^ mixed >> np.uint32(16)) * _FINISH)
        target[k] ^= np.uint32(mixed >> np.uint32(shift))


@compiled
def _tweak_of(window: int, tweak: Any) -> Any:
    mixed = np.uint64(window) + tweak
    mixed = (mixed ^ mixed >> np.uint64(30)) * _FIRST
    mixed = (mixed ^ mixed >> np.uint64(30)) * _SECOND
    return np.uint32(mixed >> np.uint64(32))
