"""An order that the caller wrote down, in place of one computed from a seed."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.arguments import integer
from raypack.errors import SamplerError
from raypack.sampling.orders.permutation import checked_positions
from raypack.sampling.states.encoding import decode_numbers, encode_numbers

EXPLICIT_VERSION = "raypack explicit order 1"


class ExplicitOrder:
    """Every index of [0, N) once, in the caller's order; the same in every epoch.

    It is checked, copied and hashed once; records share it.
    """

    __slots__ = ("_digest", "_indices")

    def __init__(self, indices: ArrayLike) -> None:
        """Check and copy the order.

        Args:
            indices: (N,) integers, each of [0, N) once.

        Raises:
            TypeError: they are no integers.
            SamplerError: one is out of range or comes twice.
        """
        array = np.asarray(indices)
        self._indices = checked_positions("order", array, array.size)
        times = np.bincount(self._indices, minlength=array.size)
        if (times != 1).any():
            twice = int(np.flatnonzero(times > 1)[0])
            raise SamplerError(f"order must hold every index once, got {twice} {int(times[twice])} times")
        self._indices.flags.writeable = False
        self._digest: str | None = None

    @property
    def length(self) -> int:
        """N, examples in the source."""
        return len(self._indices)

    @property
    def indices(self) -> NDArray[np.int64]:
        """The order, (N,) int64, read-only."""
        return self._indices

    def at(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return the source index at each position; see `EpochOrder.at`."""
        return self._indices[checked_positions("positions", positions, self.length)]

    def slice(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source indices at positions [start, stop); see `EpochOrder.slice`."""
        stop = integer("stop", stop, minimum=0, maximum=self.length)
        start = integer("start", start, minimum=0, maximum=stop)
        return self._indices[start:stop].copy()

    def digest(self) -> str:
        """Return the hash of the whole order, hex."""
        if self._digest is None:
            hasher = hashlib.blake2b(f"{EXPLICIT_VERSION}\0{self.length}\0".encode(), digest_size=16)
            hasher.update(self._indices.astype("<i8").tobytes())
            self._digest = hasher.hexdigest()
        return self._digest

    def to_dict(self) -> dict[str, Any]:
        """Return the order as a JSON-safe dict; see `encode_numbers`."""
        return encode_numbers(self._indices)

    @classmethod
    def from_dict(cls, value: object, length: int) -> ExplicitOrder:
        """Read what `to_dict` gave.

        Args:
            value: The dict as loaded.
            length: How many indices there may be.

        Raises:
            SamplerError: ``value`` is anything else.
        """
        return cls(decode_numbers("order", value, length))

    def __eq__(self, other: object) -> bool:
        """Orders are equal when their digests are."""
        return self.digest() == other.digest() if isinstance(other, ExplicitOrder) else NotImplemented

    def __hash__(self) -> int:
        """Hash the digest."""
        return hash(self.digest())

    def __repr__(self) -> str:
        """Say the length only."""
        return f"ExplicitOrder({self.length} indices)"
