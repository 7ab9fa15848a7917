"""The length table: how many tokens each example of the source has, held once and shared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raypack.arguments import integer, optional_integer, text
from raypack.choices import INT32_MAX
from raypack.errors import SamplerError

LENGTHS_VERSION = "raypack lengths 1"

_CHUNK = 4_194_304


class LengthTable:
    """An immutable table of int32 lengths with its digest and extremes.

    An int32 array is viewed, not copied: a memory map stays on disk and an array of an object store
    stays in it. What a manifest already knows (digest, minimum and maximum with their first indices)
    is taken from it, so that opening the table reads nothing; the rest is computed once, when it is
    first asked for. The caller must not change an array it has handed over.
    """

    __slots__ = ("_array", "_digest", "_maximum", "_maximum_index", "_minimum", "_minimum_index")

    def __init__(
        self,
        array: ArrayLike,
        digest: str | None = None,
        *,
        minimum: int | None = None,
        minimum_index: int | None = None,
        maximum: int | None = None,
        maximum_index: int | None = None,
    ) -> None:
        """Wrap an array of lengths.

        Args:
            array: (N,) integers, tokens, 0 to 2**31 - 1. Without ``minimum`` they are read once.
            digest: What `lengths_digest` gives for them, where it is known.
            minimum: The least length, where it is known.
            minimum_index: The first index of the least length.
            maximum: The greatest length, where it is known.
            maximum_index: The first index of the greatest length.

        Raises:
            TypeError: ``array`` holds no integers.
            SamplerError: it is not one-dimensional, or a length is out of range.
        """
        self._array = _as_int32(array)
        self._digest = None if digest is None else text("digest", digest)
        last = max(len(self._array) - 1, 0)
        self._minimum = optional_integer("minimum", minimum, minimum=0, maximum=INT32_MAX)
        self._maximum = optional_integer("maximum", maximum, minimum=0, maximum=INT32_MAX)
        self._minimum_index = optional_integer("minimum_index", minimum_index, minimum=0, maximum=last)
        self._maximum_index = optional_integer("maximum_index", maximum_index, minimum=0, maximum=last)
        if minimum is None:
            self._scan()

    @classmethod
    def of(cls, lengths: LengthTable | ArrayLike) -> LengthTable:
        """Return ``lengths`` as a table; a table is passed through."""
        return lengths if isinstance(lengths, LengthTable) else cls(lengths)

    @property
    def array(self) -> NDArray[np.int32]:
        """The lengths, (N,) int32, tokens, read-only."""
        return self._array

    @property
    def digest(self) -> str:
        """The hash by which checkpoints recognise the table, hex; see `lengths_digest`."""
        if self._digest is None:
            self._digest = lengths_digest(_chunks(self._array))
        return self._digest

    @property
    def minimum(self) -> int | None:
        """The least length in tokens; None for an empty table."""
        return self._minimum

    @property
    def minimum_index(self) -> int | None:
        """The first index of the least length; None for an empty table."""
        if self._minimum_index is None:
            self._scan()
        return self._minimum_index

    @property
    def maximum(self) -> int | None:
        """The greatest length in tokens; None for an empty table."""
        if self._maximum is None:
            self._scan()
        return self._maximum

    @property
    def maximum_index(self) -> int | None:
        """The first index of the greatest length; None for an empty table."""
        if self._maximum_index is None:
            self._scan()
        return self._maximum_index

    def first_outside(self, low: int, high: int) -> int | None:
        """Return the first index whose length is not in [low, high], None where there is none.

        Args:
            low: Least length allowed, tokens.
            high: Greatest length allowed, tokens.
        """
        if self.minimum is None or self.maximum is None or (self.minimum >= low and self.maximum <= high):
            return None
        start = 0
        for chunk in _chunks(self._array):
            outside = (chunk < low) | (chunk > high)
            if outside.any():
                return start + int(outside.argmax())
            start += len(chunk)
        raise SamplerError(
            f"the length table's minimum {self.minimum} and maximum {self.maximum} do not occur in it; "
            "its manifest does not belong to it, index the source again"
        )

    def __len__(self) -> int:
        """Return N, the number of examples."""
        return len(self._array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the lengths as numpy asks for them; without a dtype or a copy, the table itself."""
        array = self._array if dtype is None else self._array.astype(dtype, copy=False)
        return array.copy() if copy else array

    def __eq__(self, other: object) -> bool:
        """Tables are equal when their digests are."""
        return self.digest == other.digest if isinstance(other, LengthTable) else NotImplemented

    def __hash__(self) -> int:
        """Hash the digest."""
        return hash(self.digest)

    def __repr__(self) -> str:
        """Say the size and the extremes."""
        return f"LengthTable({len(self)} examples, {self._minimum} to {self._maximum} tokens)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the array (out of band where the protocol can) with all that is known of it."""
        known = (self._digest, self._minimum, self._minimum_index, self._maximum, self._maximum_index)
        return _restore, (self._array, *known)

    def _scan(self) -> None:
        """Find the extremes and their first indices in one pass."""
        start = 0
        low, high, low_index, high_index = None, None, None, None
        for chunk in _chunks(self._array):
            least, greatest = int(chunk.argmin()), int(chunk.argmax())
            if low is None or chunk[least] < low:
                low, low_index = int(chunk[least]), start + least
            if high is None or chunk[greatest] > high:
                high, high_index = int(chunk[greatest]), start + greatest
            start += len(chunk)
        if low is not None and low < 0:
            raise SamplerError(f"lengths must be at least 0, got {low} at index {low_index}")
        self._minimum, self._minimum_index = low, low_index
        self._maximum, self._maximum_index = high, high_index


def lengths_digest(chunks: Iterable[NDArray[np.int32]]) -> str:
    """Return the digest of a length table that comes in pieces, hex.

    It is a hash of the lengths as little-endian int32 and of their number, so any cut gives the same.

    Args:
        chunks: (n,) int32 arrays, the table from first to last.
    """
    hasher = hashlib.blake2b(LENGTHS_VERSION.encode() + b"\0", digest_size=16)
    count = 0
    for chunk in chunks:
        hasher.update(np.ascontiguousarray(chunk, "<i4").data.cast("B") if len(chunk) else b"")
        count += len(chunk)
    hasher.update(count.to_bytes(8, "little"))
    return hasher.hexdigest()


def _restore(array: NDArray[np.int32], *known: Any) -> LengthTable:
    digest, minimum, minimum_index, maximum, maximum_index = known
    return LengthTable(
        array,
        digest,
        minimum=minimum,
        minimum_index=minimum_index,
        maximum=maximum,
        maximum_index=maximum_index,
    )


def _chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(array), _CHUNK):
        yield array[start : start + _CHUNK]


def _as_int32(lengths: ArrayLike) -> NDArray[np.int32]:
    """Return a read-only int32 view, or a copy where the numbers came in another type."""
    array = np.asanyarray(lengths)
    if array.size == 0 and not isinstance(lengths, np.ndarray):
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"lengths must be integers, got dtype {array.dtype}; count tokens, not averages or flags"
        )
    if array.ndim != 1:
        raise SamplerError(f"lengths must be one-dimensional, got shape {array.shape}; one length an example")
    if array.dtype != np.int32:
        _check_range(array)
        array = array.astype(np.int32)
    view = array.view()
    view.flags.writeable = False
    return view


def _check_range(array: NDArray[Any]) -> None:
    start = 0
    for chunk in _chunks(array):
        outside = (chunk < 0) | (chunk > INT32_MAX)
        if outside.any():
            at = int(outside.argmax())
            value = integer("length", chunk[at])
            raise SamplerError(f"lengths must be in [0, {INT32_MAX}], got {value} at index {start + at}")
        start += len(chunk)
