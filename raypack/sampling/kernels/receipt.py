"""The order-free hash of trained examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from raypack.compiled import Array, compiled

_STRIDE, _FIRST, _SECOND = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)


@compiled
def hash_sum(key: Any, indices: Array) -> Any:
    """Return the sum modulo 2**64 of the keyed hashes of indices (SplitMix64; Steele, Lea, Flood 2014).

    Args:
        key: uint64.
        indices: (n,) int64.
    """
    total = np.uint64(0)
    for place in range(len(indices)):
        mixed = np.uint64(indices[place]) * _STRIDE + key
        mixed = (mixed ^ mixed >> np.uint64(30)) * _FIRST
        mixed = (mixed ^ mixed >> np.uint64(27)) * _SECOND
        total += mixed ^ mixed >> np.uint64(31)
    return total
