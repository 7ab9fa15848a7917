"""The order of an epoch: which source index stands at which position, for every rank alike."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.arguments import choice, integer, optional_integer
from raypack.choices import SHUFFLES
from raypack.sampling.orders.block_permutation import BlockPermutation
from raypack.sampling.orders.permutation import MAXIMUM_SIZE, TABLE_SIZE, KeyedPermutation, checked_positions

ORDER_VERSION = "raypack order 1"
SEED_LIMIT = 2**64

_FIXED_POSITIONS = 1_024
_CHUNK = 8_192


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of one epoch over a source of N examples, a pure function of its fields.

    Attributes:
        length: N, examples in the source.
        seed: In [0, 2**64), or None for source order.
        epoch: In [0, 2**64); each epoch has an order of its own, unrelated to that of (seed + 1).
        shuffle: "full", one bijection of the whole source, or "block", see `BlockPermutation`.
    """

    length: int
    seed: int | None = field(default=None, kw_only=True)
    epoch: int = field(default=0, kw_only=True)
    shuffle: str = field(default="full", kw_only=True)
    _bijection: KeyedPermutation | BlockPermutation | None = field(
        init=False, repr=False, compare=False, default=None
    )

    def __post_init__(self) -> None:
        """Check the fields and derive the bijection."""
        put = functools.partial(object.__setattr__, self)
        put("length", integer("length", self.length, minimum=0, maximum=MAXIMUM_SIZE))
        put("seed", optional_integer("seed", self.seed, minimum=0, maximum=SEED_LIMIT - 1))
        put("epoch", integer("epoch", self.epoch, minimum=0, maximum=SEED_LIMIT - 1))
        choice("shuffle", self.shuffle, SHUFFLES)
        if self.seed is not None:
            put("_bijection", _bijection(self.key, self.length, self.shuffle))

    @property
    def key(self) -> bytes:
        """The hash of (seed, epoch, shuffle) that chooses the order; empty for source order."""
        if self.seed is None:
            return b""
        words = self.seed.to_bytes(8, "little") + self.epoch.to_bytes(8, "little")
        text = ORDER_VERSION.encode() + b"\0" + self.shuffle.encode() + b"\0" + words
        return hashlib.blake2b(text, digest_size=32).digest()

    def at(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return the source index at each position.

        Args:
            positions: (n,) integers in [0, N), in any order.

        Returns:
            (n,) int64, a new array.

        Raises:
            TypeError: ``positions`` holds no integers.
            SamplerError: one of them is out of range.
        """
        if self._bijection is None:
            return checked_positions("positions", positions, self.length)
        return self._bijection.at(positions)

    def slice(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source indices at positions [start, stop).

        Args:
            start: First position, 0 to N.
            stop: One past the last position, start to N.

        Returns:
            (stop - start,) int64, a new array.
        """
        stop = integer("stop", stop, minimum=0, maximum=self.length)
        start = integer("start", start, minimum=0, maximum=stop)
        if self._bijection is None:
            return np.arange(start, stop, dtype=np.int64)
        indices = np.empty(stop - start, np.int64)
        for first in range(start, stop, _CHUNK):
            last = min(first + _CHUNK, stop)
            indices[first - start : last - start] = self._bijection.at(np.arange(first, last))
        return indices

    def digest(self) -> str:
        """Return the hash by which a checkpoint recognises this order, the same cost at any N.

        It covers the algorithm's version, the key, N and the indices at 1,024 evenly spaced positions
        (all positions where N is no larger).
        """
        return _digest(self.length, self.seed, self.epoch, self.shuffle)


@functools.lru_cache(maxsize=16)
def _bijection(key: bytes, size: int, shuffle: str) -> KeyedPermutation | BlockPermutation:
    if shuffle == "block" and size > TABLE_SIZE:
        return BlockPermutation(key, size)
    # One window holds the whole source: its shuffle is the whole order.
    return KeyedPermutation(key, size)


@functools.lru_cache(maxsize=256)
def _digest(length: int, seed: int | None, epoch: int, shuffle: str) -> str:
    order = EpochOrder(length, seed=seed, epoch=epoch, shuffle=shuffle)
    hasher = hashlib.blake2b(digest_size=16)
    hasher.update(f"{ORDER_VERSION}\0{shuffle}\0{length}\0{order.key.hex()}\0".encode())
    hasher.update(order.at(fixed_positions(length)).astype("<i8").tobytes())
    return hasher.hexdigest()


def fixed_positions(length: int) -> NDArray[np.int64]:
    """Return the positions that a digest looks at: all up to 1,024, else that many from first to last."""
    if length <= _FIXED_POSITIONS:
        return np.arange(length, dtype=np.int64)
    last = _FIXED_POSITIONS - 1
    return np.array([number * (length - 1) // last for number in range(_FIXED_POSITIONS)], np.int64)
