"""A bitmap of the examples that were seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raypack.compiled import compiled


@compiled
def mark(bits: NDArray[np.uint8], indices: NDArray[np.int64]) -> tuple[int, int]:
    """Set the bit of each index.

    Args:
        bits: A bit for each example, the lowest of a byte first; written.
        indices: Source indices.

    Returns:
        How many of the bits were set before, and the place of the first index without a bit, -1 if there
        is none; it and those after it are not marked.
    """
    again = 0
    for k in range(len(indices)):
        index = indices[k]
        if index < 0 or index >> 3 >= len(bits):
            return again, k
        bit = np.uint8(1 << (index & 7))
        if bits[index >> 3] & bit:
            again += 1
        bits[index >> 3] |= bit
    return again, -1
