"""A keyed Feistel network over b-bit numbers: a bijection of [0, 2**b) that needs no memory."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.arrays import read_only
from raypack.errors import SamplerError

MINIMUM_BITS = 2
MAXIMUM_BITS = 62

_ROUNDS = 8


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
    """Eight rounds over two halves of b bits in all.

    The halves take turns: one is hashed with the round's key (multiply, add, fold, multiply; the top
    bits of the product) and added bit by bit to the other. An odd b makes the right half the wider.
    Every step is arithmetic on uint32, so no machine and no compiler can change the result.
    """

    __slots__ = ("keys",)

    def __init__(self, key: bytes, bits: int) -> None:
        """Derive the round keys.

        Args:
            key: Any bytes.
            bits: The domain's width, 2 to 62.
        """
        words = key_words(key, f"feistel {bits}", 2 * _ROUNDS)
        pairs = zip(words[::2], words[1::2], strict=True)
        table = [(bits // 2, bits - bits // 2), *((factor | 1, term) for factor, term in pairs)]
        self.keys = read_only(table, np.uint32)

    def images(
        self,
        positions: ArrayLike,
        size: int,
        *,
        name: str = "positions",
        tweaks: NDArray[np.uint32] | None = None,
        backward: bool = False,
    ) -> NDArray[np.int64]:
        """Return the image of each position, applied again until it is below ``size`` (cycle walking).

        Args:
            positions: (n,) integers in [0, size).
            size: N, at most 2**bits.
            name: What an error calls the positions.
            tweaks: (n,) uint32 chooses one of 2**32 networks for each position; None is tweak 0.
            backward: Whether to return the position of each image instead.

        Raises:
            TypeError: ``positions`` holds no integers.
            SamplerError: one of them is out of range.
        """
        from raypack.sampling.kernels.order import walk

        values = integers(name, positions)
        chosen = read_only(() if tweaks is None else tweaks, np.uint32)
        images = np.empty(len(values), np.int64)
        wrong = walk(read_only(values, np.int64), chosen, size, self.keys, backward, images)
        if wrong >= 0:
            raise out_of_range(name, values[wrong], size)
        return images


def integers(name: str, values: ArrayLike) -> NDArray[np.integer]:
    """Return ``values`` as a one-dimensional array of integers, an empty list as int64.

    Raises:
        TypeError: they are no integers.
        SamplerError: they are not one-dimensional.
    """
    array = np.asarray(values)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
    if array.ndim != 1:
        raise SamplerError(f"{name} must be one-dimensional, got shape {array.shape}")
    return array


def out_of_range(name: str, value: int | np.integer, size: int) -> SamplerError:
    """Return the error that names a position outside [0, size)."""
    return SamplerError(f"{name} must be in [0, {size}), got {int(value)}")
