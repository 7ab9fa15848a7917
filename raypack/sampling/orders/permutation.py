"""A keyed bijection of [0, N): the shuffle of an epoch, computed at any position without a list."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.arguments import integer
from raypack.sampling.orders.feistel import Feistel, integers, key_words, out_of_range

MAXIMUM_SIZE = 2**62
TABLE_SIZE = 65_536


class KeyedPermutation:
    """A bijection of [0, N) chosen by a key: position to index, and back.

    Up to 65,536 positions it is the order in which keyed 64-bit hashes of the indices sort: all N!
    orders are equally likely. Above, it is a Feistel network on the fewest bits that hold N, applied
    again to each value that falls outside [0, N) until it falls inside (cycle walking; fewer than two
    passes on average). The result depends on nothing but (key, N, position).
    """

    __slots__ = ("_forward_table", "_inverse_table", "_network", "key", "size")

    def __init__(self, key: bytes, size: int) -> None:
        """Derive the bijection.

        Args:
            key: Any bytes.
            size: N, 0 to 2**62.

        Raises:
            TypeError: ``size`` is no integer.
            SamplerError: ``size`` is out of range.
        """
        self.key = bytes(key)
        self.size = integer("size", size, minimum=0, maximum=MAXIMUM_SIZE)
        self._forward_table: NDArray[np.int64] | None = None
        self._inverse_table: NDArray[np.int64] | None = None
        self._network = Feistel(self.key, (self.size - 1).bit_length()) if self.size > TABLE_SIZE else None

    def __reduce__(self) -> tuple[type[KeyedPermutation], tuple[bytes, int]]:
        """Pickle the key and the size only; tables are made again where they are needed."""
        return KeyedPermutation, (self.key, self.size)

    def at(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return the index at each position.

        Args:
            positions: (n,) integers in [0, N).

        Returns:
            (n,) int64, a new array.

        Raises:
            TypeError: ``positions`` holds no integers.
            SamplerError: one of them is out of range.
        """
        if self._network is not None:
            return self._network.images(positions, self.size)
        return self._forward()[checked_positions("positions", positions, self.size)]

    def inverse(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the position of each index; see `at`."""
        if self._network is not None:
            return self._network.images(indices, self.size, name="indices", backward=True)
        return self._backward()[checked_positions("indices", indices, self.size)]

    def _forward(self) -> NDArray[np.int64]:
        if self._forward_table is None:
            self._forward_table = np.argsort(_index_hashes(self.key, self.size), kind="stable")
        return self._forward_table

    def _backward(self) -> NDArray[np.int64]:
        if self._inverse_table is None:
            table = np.empty(self.size, np.int64)
            table[self._forward()] = np.arange(self.size)
            self._inverse_table = table
        return self._inverse_table


def checked_positions(name: str, values: ArrayLike, size: int) -> NDArray[np.int64]:
    """Return a new contiguous (n,) int64 array of ``values``, all of them in [0, size).

    Raises:
        TypeError: they are no integers.
        SamplerError: they are not one-dimensional or out of range.
    """
    array = integers(name, values)
    if array.size and (int(array.min()) < 0 or int(array.max()) >= size):
        raise out_of_range(name, array.min() if array.min() < 0 else array.max(), size)
    return np.array(array, dtype=np.int64, order="C", copy=True)


def _index_hashes(key: bytes, size: int) -> NDArray[np.uint64]:
    """Hash 0 … size-1 to 64 bits each: add and multiply by the key, then fold and multiply, three times."""
    words = key_words(key, f"table {size}", 8)
    terms = [np.uint64(words[i] | words[i + 1] << 32) for i in range(0, 8, 2)]
    factors = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)
    hashes = np.arange(size, dtype=np.uint64) * np.uint64(int(terms[3]) | 1)
    for term, factor in zip(terms[:3], factors, strict=True):
        hashes += term
        hashes ^= hashes >> np.uint64(32)
        hashes *= np.uint64(factor)
    hashes ^= hashes >> np.uint64(29)
    return hashes
