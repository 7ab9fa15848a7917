"""A keyed Feistel network over b-bit numbers: a bijection of [0, 2**b) that needs no memory."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

MINIMUM_BITS = 2
MAXIMUM_BITS = 62

_ROUNDS = 8
_CHUNK = 16_384
_FINISH = np.uint32(0x9E3779B1)
_FOLD = np.uint32(16)


def key_words(key: bytes, label: str, count: int) -> list[int]:
    """Return ``count`` 32-bit words that depend on the key and the label alone.

    Args:
        key: Any bytes.
        label: What the words are for; other labels give unrelated words.
        count: How many words, at most 16 of them a hash.
    """
    words: list[int] = []
    block = 0
    while len(words) < count:
        text = b"raypack words 1\0" + label.encode() + b"\0" + block.to_bytes(4, "little") + key
        words += np.frombuffer(hashlib.blake2b(text).digest(), "<u4").tolist()
        block += 1
    return words[:count]


class Feistel:
    """Eight rounds over two halves of b bits in all, computed in place.

    The halves take turns: one is hashed with the round's key (multiply, add, fold, multiply; the top
    bits of the product) and added bit by bit to the other. An odd b makes the right half the wider.
    Every step is arithmetic on uint32, so no machine and no numpy release can change the result.
    """

    __slots__ = ("_keys", "_left_bits", "_right_bits")

    def __init__(self, key: bytes, bits: int) -> None:
        """Derive the round keys.

        Args:
            key: Any bytes.
            bits: The domain's width, 2 to 62.
        """
        words = key_words(key, f"feistel {bits}", 2 * _ROUNDS)
        pairs = zip(words[::2], words[1::2], strict=True)
        self._keys = [(np.uint32(factor | 1), np.uint32(term)) for factor, term in pairs]
        self._left_bits = bits // 2
        self._right_bits = bits - self._left_bits

    def forward(self, values: NDArray[np.int64], tweak: NDArray[np.uint32] | None = None) -> None:
        """Replace each value by its image.

        Args:
            values: (n,) int64 in [0, 2**b), contiguous; overwritten.
            tweak: (n,) uint32 chooses one of 2**32 networks for each value; None is tweak 0.
        """
        self._run(values, tweak, range(_ROUNDS))

    def backward(self, values: NDArray[np.int64], tweak: NDArray[np.uint32] | None = None) -> None:
        """Undo `forward`, in place."""
        self._run(values, tweak, range(_ROUNDS - 1, -1, -1))

    def _run(self, values: NDArray[np.int64], tweak: NDArray[np.uint32] | None, rounds: range) -> None:
        for start in range(0, len(values), _CHUNK):
            part = slice(start, start + _CHUNK)
            self._run_chunk(values[part], None if tweak is None else tweak[part], rounds)

    def _run_chunk(self, values: NDArray[np.int64], tweak: NDArray[np.uint32] | None, rounds: range) -> None:
        right = (values & ((1 << self._right_bits) - 1)).astype(np.uint32)
        left = (values >> self._right_bits).astype(np.uint32)
        mixed = np.empty_like(left)
        folded = np.empty_like(left)
        to_left, to_right = np.uint32(32 - self._left_bits), np.uint32(32 - self._right_bits)
        for number in rounds:
            factor, term = self._keys[number]
            source, target, shift = (left, right, to_right) if number % 2 else (right, left, to_left)
            np.multiply(source, factor, out=mixed)
            np.add(mixed, term, out=mixed)
            if tweak is not None:
                np.add(mixed, tweak, out=mixed)
            np.right_shift(mixed, _FOLD, out=folded)
            np.bitwise_xor(mixed, folded, out=mixed)
            np.multiply(mixed, _FINISH, out=mixed)
            np.right_shift(mixed, shift, out=mixed)
            np.bitwise_xor(target, mixed, out=target)
        values[:] = left
        values <<= self._right_bits
        values |= right
