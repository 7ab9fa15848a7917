"""The block shuffle: blocks change places, examples change places inside a window of blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.sampling.feistel import Feistel, key_words
from raypack.sampling.permutation import KeyedPermutation, checked_positions

BLOCK = 1_024
WINDOW_BLOCKS = 64

_BLOCK_BITS = 10
_WINDOW_BITS = 16
_CHUNK = 65_536


class BlockPermutation:
    """A bijection of [0, N) that reads the source in runs, for stores where locality pays.

    The source is cut into blocks of 1,024 examples. One keyed bijection orders the blocks; then each
    window of 64 neighbours in that order, 65,536 examples, is shuffled by a bijection of its own. So
    any stretch of the order touches few blocks. The source's last block may be short: it too lies
    anywhere in the order, and makes its window short. Nothing is stored: the short block's place is
    found by the inverse.
    """

    __slots__ = (
        "_blocks",
        "_irregular",
        "_last_block",
        "_missing",
        "_network",
        "_short_slot",
        "_tweak_words",
        "key",
        "size",
    )

    def __init__(self, key: bytes, size: int) -> None:
        """Derive the bijections.

        Args:
            key: Any bytes.
            size: N, 1 to 2**62.
        """
        self.key = bytes(key)
        count = -(-size // BLOCK)
        self._blocks = KeyedPermutation(b"blocks" + self.key, count)
        self.size = size
        self._last_block = count - 1
        self._missing = count * BLOCK - size
        self._short_slot = int(self._blocks.inverse([self._last_block])[0])
        windows = {self._short_slot // WINDOW_BLOCKS, self._last_block // WINDOW_BLOCKS}
        self._irregular = {number: self._irregular_window(number) for number in sorted(windows)}
        self._network = Feistel(b"window" + self.key, _WINDOW_BITS)
        self._tweak_words = [np.uint64(word) for word in key_words(self.key, "window tweak", 2)]

    def __reduce__(self) -> tuple[type[BlockPermutation], tuple[bytes, int]]:
        """Pickle the key and the size only."""
        return BlockPermutation, (self.key, self.size)

    def at(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return the index at each position; see `KeyedPermutation.at`."""
        values = checked_positions("positions", positions, self.size)
        for start in range(0, len(values), _CHUNK):
            self._replace(values[start : start + _CHUNK])
        return values

    def _replace(self, values: NDArray[np.int64]) -> None:
        """Replace each position by its index, in place."""
        self._shuffle_windows(values, self._as_if_full(values) >> _WINDOW_BITS)
        regular = self._as_if_full(values)
        np.bitwise_and(regular, BLOCK - 1, out=values)
        regular >>= _BLOCK_BITS
        values += self._blocks.at(regular) << _BLOCK_BITS

    def _as_if_full(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number the positions as if the short block were full: then slots and windows are plain shifts."""
        return values + (values >= self._slot_start(self._short_slot + 1)) * np.int64(self._missing)

    def _slot_start(self, slot: int) -> int:
        """Return the first position of a slot in block order; the short block's slot is short."""
        return slot * BLOCK - (self._missing if slot > self._short_slot else 0)

    def _shuffle_windows(self, values: NDArray[np.int64], window: NDArray[np.int64]) -> None:
        """Move each position inside its window, in place."""
        base = self._starts(window)
        offsets = values - base
        self._network.forward(offsets, self._tweaks(window))
        offsets += base
        for number, (start, inside) in self._irregular.items():
            members = np.flatnonzero(window == number)
            if len(members):
                offsets[members] = start + inside.at(values[members] - start)
        values[:] = offsets

    def _irregular_window(self, number: int) -> tuple[int, KeyedPermutation]:
        """Return the start and the shuffle of a window that may hold fewer than 65,536 positions."""
        start = self._slot_start(number * WINDOW_BLOCKS)
        stop = self._slot_start(min((number + 1) * WINDOW_BLOCKS, self._last_block + 1))
        key = b"irregular window" + number.to_bytes(8, "little") + self.key
        return start, KeyedPermutation(key, stop - start)

    def _starts(self, window: NDArray[np.int64]) -> NDArray[np.int64]:
        after = window > self._short_slot // WINDOW_BLOCKS
        return (window << _WINDOW_BITS) - after * np.int64(self._missing)

    def _tweaks(self, window: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Hash the windows' numbers to the 32 bits that choose their networks."""
        mixed = window.astype(np.uint64) + (self._tweak_words[0] | self._tweak_words[1] << np.uint64(32))
        for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            mixed ^= mixed >> np.uint64(30)
            mixed *= np.uint64(factor)
        return (mixed >> np.uint64(32)).astype(np.uint32)
