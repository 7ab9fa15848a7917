"""Rows of a dataset by their indices: all of them or an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raypack.errors import SamplerError


def load_items(dataset: Sequence[Any], indices: NDArray[np.int64], source_length: int) -> list[Any]:
    """Return the rows at ``indices``, in their order.

    Args:
        dataset: Anything with a length and integer items.
        indices: (n,) int64.
        source_length: The length that it must have.

    Raises:
        SamplerError: the dataset has another length, or a row is missing (a `LookupError` or None).
    """
    if len(dataset) != source_length:
        raise SamplerError(
            f"dataset must have the source's {source_length} examples, got {len(dataset)}; "
            "it is not the source that this sampler was made for"
        )
    items = []
    for index in indices.tolist():
        try:
            item = dataset[index]
        except LookupError as fault:
            raise SamplerError(f"dataset must have row {index}, got {fault!r}; nothing was issued") from fault
        if item is None:
            raise SamplerError(f"dataset must have row {index}, got None; nothing was issued")
        items.append(item)
    return items
