"""Arrays of numbers as JSON-safe text: fixed-width little-endian bytes, deflated, in base64.

Increasing positions are saved as gaps. The gaps of a ragged head repeat with the ranks' pattern, which
deflate folds: a head of millions of positions takes some tens of KiB. Text from outside is checked in
full, and what it may make us allocate is bounded by its own size.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raypack.arguments import type_name
from raypack.errors import SamplerError
from raypack.sampling.states.records import read_fields, read_integer

_FIELDS = ("count", "width", "data")
_WIDTHS = (1, 2, 4, 8)
_DEFLATE_RATIO = 1_032
_LIMIT = 2**62


def encode_numbers(numbers: NDArray[np.int64]) -> dict[str, Any]:
    """Return (n,) non-negative int64 as a JSON-safe dict with ``count``, ``width`` (bytes each), ``data``."""
    greatest = int(numbers.max()) if len(numbers) else 0
    width = next(width for width in _WIDTHS if greatest < 256**width)
    raw = numbers.astype(f"<u{width}").tobytes()
    return {
        "count": len(numbers),
        "width": width,
        "data": base64.b64encode(zlib.compress(raw, 9)).decode("ascii"),
    }


def decode_numbers(name: str, value: object, limit: int) -> NDArray[np.int64]:
    """Return what `encode_numbers` was given.

    Args:
        name: What the numbers are, for messages.
        value: The dict as loaded.
        limit: How many there may be.

    Raises:
        SamplerError: ``value`` is anything but such a dict.
    """
    fields = read_fields(name, value, _FIELDS)
    count = read_integer(name, "count", fields["count"], limit)
    width = read_integer(name, "width", fields["width"], max(_WIDTHS))
    if width not in _WIDTHS:
        raise SamplerError(f"{name} width must be 1, 2, 4 or 8 bytes, got {width}")
    raw = _inflate(name, _decode_base64(name, fields["data"]), count * width)
    numbers = np.frombuffer(raw, f"<u{width}")
    if len(numbers) and int(numbers.max()) >= _LIMIT:
        raise SamplerError(f"{name} must hold numbers below 2**62, got {int(numbers.max())}")
    return numbers.astype(np.int64)


def encode_increasing(positions: NDArray[np.int64]) -> dict[str, Any]:
    """Return (n,) strictly increasing non-negative int64 as a JSON-safe dict of their gaps less one."""
    return encode_numbers(np.diff(positions, prepend=-1) - 1)


def decode_increasing(name: str, value: object, limit: int) -> NDArray[np.int64]:
    """Return what `encode_increasing` was given; see `decode_numbers`."""
    gaps = decode_numbers(name, value, limit)
    if float(gaps.sum(dtype=np.float64)) + len(gaps) >= _LIMIT:
        raise SamplerError(f"{name} must hold positions below 2**62, got greater ones")
    return np.cumsum(gaps + 1) - 1


def _decode_base64(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise SamplerError(f"{name} data must be base64 text, got {type_name(text)}")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as fault:
        raise SamplerError(f"{name} data is damaged: it is no base64 text ({fault})") from fault


def _inflate(name: str, packed: bytes, size: int) -> bytes:
    """Inflate to exactly ``size`` bytes, never to more."""
    if size > _DEFLATE_RATIO * len(packed):
        raise SamplerError(f"{name} is damaged: {len(packed)} bytes cannot hold the {size} that it claims")
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(packed, size + 1)
    except zlib.error as fault:
        raise SamplerError(f"{name} data is damaged: {fault}") from fault
    if len(raw) != size or not inflater.eof or inflater.unused_data:
        raise SamplerError(f"{name} is damaged: its data does not hold the {size} bytes that it claims")
    return raw
