"""The block shuffle: blocks change places, examples change places inside a window of blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.arrays import read_only
from raypack.sampling.orders.feistel import Feistel, integers, key_words, out_of_range
from raypack.sampling.orders.permutation import KeyedPermutation

BLOCK = 1_024
WINDOW_BLOCKS = 64
WINDOW = BLOCK * WINDOW_BLOCKS

_CHUNK = 8_192


class BlockPermutation:
    """A bijection of [0, N) that reads the source in runs, for stores where locality pays.

    The source is cut into blocks of 1,024 examples. One keyed bijection orders the blocks; then each
    window of 64 neighbours in that order, 65,536 examples, is shuffled by a bijection of its own. So
    any stretch of the order touches few blocks. The source's last block may be short: it too lies
    anywhere in the order, and makes its window short. Nothing is stored: the short block's place is
    found by the inverse.
    """

    __slots__ = ("_blocks", "_network", "_short_slot", "_tables", "_tweak", "_windows", "key", "size")

    def __init__(self, key: bytes, size: int) -> None:
        """Derive the bijections.

        Args:
            key: Any bytes.
            size: N, 1 to 2**62.
        """
        self.key = bytes(key)
        self.size = size
        last = -(-size // BLOCK) - 1
        self._blocks = KeyedPermutation(b"blocks" + self.key, last + 1)
        self._short_slot = int(self._blocks.inverse([last])[0])
        self._network = Feistel(b"window" + self.key, WINDOW.bit_length() - 1)
        low, high = key_words(self.key, "window tweak", 2)
        self._tweak = np.uint64(low | high << 32)
        numbers = sorted({self._short_slot // WINDOW_BLOCKS, last // WINDOW_BLOCKS})
        self._windows = read_only([self._start_of(number) for number in numbers], np.int64)
        self._tables = read_only([self._table_of(number) for number in numbers], np.int64)

    def __reduce__(self) -> tuple[type[BlockPermutation], tuple[bytes, int]]:
        """Pickle the key and the size only."""
        return BlockPermutation, (self.key, self.size)

    def at(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return the index at each position; see `KeyedPermutation.at`."""
        values = integers("positions", positions)
        indices = np.empty(len(values), np.int64)
        for start in range(0, len(values), _CHUNK):
            indices[start : start + _CHUNK] = self._at(values[start : start + _CHUNK])
        return indices

    def _at(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the indices of some positions, few enough for the processor's cache."""
        from raypack.sampling.kernels.order import block_order

        slots, offsets = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        wrong = block_order(
            read_only(positions, np.int64),
            self.size,
            self._network.keys,
            self._tweak,
            self._short_slot,
            self._windows,
            self._tables,
            slots,
            offsets,
        )
        if wrong >= 0:
            raise out_of_range("positions", positions[wrong], self.size)
        indices = self._blocks.at(slots)
        indices *= BLOCK
        indices += offsets
        return indices

    def _start_of(self, number: int) -> int:
        """Return the first position of a window; those after the short block begin earlier."""
        missing = -self.size % BLOCK if number * WINDOW_BLOCKS > self._short_slot else 0
        return min(number * WINDOW - missing, self.size)

    def _table_of(self, number: int) -> NDArray[np.int64]:
        """Return the shuffle of a window that may hold fewer than 65,536 positions, filled up with zeros."""
        start, stop = self._start_of(number), self._start_of(number + 1)
        key = b"irregular window" + number.to_bytes(8, "little") + self.key
        inside = KeyedPermutation(key, stop - start).at(np.arange(stop - start))
        return np.pad(inside, (0, WINDOW - len(inside)))
