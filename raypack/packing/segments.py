"""Where documents end: offsets, segment ids, positions and label edges of flat tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from raypack.arguments import integer, type_name
from raypack.choices import IGNORE_INDEX

MAXIMUM_SEGMENTS = 1_000_000

Integers: TypeAlias = "Sequence[int] | npt.NDArray[np.integer[Any]]"


def tag_sub_sequences(boundaries: Integers, *, maximum_segments: int = MAXIMUM_SEGMENTS) -> list[int]:
    """Number each token by its document, from 1.

    Args:
        boundaries: documents + 1 integers, strictly increasing from 0: where each document starts,
            and where the last one ends. A list, a tuple or a 1-D integer array.
        maximum_segments: refuse more documents than this.

    Returns:
        A plain list of ``boundaries[-1]`` ids: ``[0, 2, 3]`` gives ``[1, 1, 2]``.

    Raises:
        TypeError: a boundary is no integer.
        ValueError: there are none, too many or only one; they do not start at 0 or do not rise.
    """
    limit = integer("maximum_segments", maximum_segments, minimum=1)
    if boundaries is None or len(boundaries) == 0:
        raise ValueError("boundaries must be non-empty")
    if len(boundaries) > limit + 1:
        raise ValueError(f"too many segments ({len(boundaries) - 1}); cap is {limit}")
    if len(boundaries) < 2:
        raise ValueError(
            f"boundaries must contain at least 2 entries (one document); got {len(boundaries)} entries"
        )
    edges = integers("boundaries", boundaries)
    if edges[0] != 0:
        raise ValueError(f"boundaries must start at 0, got {edges[0]}")
    check_increasing(edges)
    tagged: list[int] = segment_ids(np.diff(edges)).tolist()
    return tagged


def document_offsets(lengths: Integers) -> npt.NDArray[np.int64]:
    """Return where each document starts, and the total.

    Args:
        lengths: (documents,) tokens of each document, each at least 1.

    Returns:
        (documents + 1,) int64, from 0.

    Raises:
        TypeError: a length is no integer.
        ValueError: a length is below 1.
    """
    sizes = integers("lengths", lengths)
    if sizes.size and sizes.min() < 1:
        first = int(np.argmax(sizes < 1))
        raise ValueError(f"lengths must be positive, got {sizes[first]} at document {first}")
    offsets = np.zeros(sizes.size + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def segment_ids(lengths: Integers) -> npt.NDArray[np.int32]:
    """Return the document of each token, from 1: (total,) int32 for (documents,) lengths."""
    sizes = integers("lengths", lengths)
    return np.repeat(np.arange(1, sizes.size + 1, dtype=np.int32), sizes)


def position_ids(lengths: Integers) -> npt.NDArray[np.int64]:
    """Return each token's position in its document, from 0: (total,) int64 for (documents,) lengths."""
    offsets = document_offsets(lengths)
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def ignore_label_edges(labels: npt.NDArray[Any], lengths: Integers) -> npt.NDArray[Any]:
    """Return a copy of the labels with each document's first one ignored.

    A loss that predicts the next token would otherwise train a document to predict the next one's
    start.

    Args:
        labels: (total,) integers aligned with the tokens.
        lengths: (documents,) tokens of each document.

    Returns:
        (total,) of the labels' dtype, -100 at each document's first token.

    Raises:
        ValueError: the lengths do not add up to the labels.
    """
    offsets = document_offsets(lengths)
    if offsets[-1] != labels.shape[0]:
        raise ValueError(f"lengths must add up to the {labels.shape[0]} labels, got {offsets[-1]}")
    edged = labels.copy()
    edged[offsets[:-1]] = IGNORE_INDEX
    return edged


def check_increasing(edges: npt.NDArray[np.int64]) -> None:
    """Refuse boundaries that do not rise, naming the first that does not."""
    falls = np.flatnonzero(edges[:-1] >= edges[1:])
    if falls.size:
        at = int(falls[0])
        raise ValueError(
            f"boundaries must be strictly increasing, got {edges[at]} >= {edges[at + 1]} at index {at}"
        )


def integers(name: str, values: Integers) -> npt.NDArray[np.int64]:
    """Return a 1-D int64 array; bool and float are refused.

    Raises:
        TypeError: a value is no integer.
        ValueError: the values are not 1-D or pass int64.
    """
    if not isinstance(values, np.ndarray):
        for value in values:
            if type(value) is not int:
                integer(name, value)
        array = np.asarray(values)
        if array.size == 0:
            return np.empty(0, dtype=np.int64)
    else:
        array = values
        if array.dtype.kind not in "iu":
            raise TypeError(f"{name} must be integers, got {type_name(values)} of {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"{name} must be 1-D, got shape {array.shape}")
    if array.dtype.kind == "O" or (array.dtype == np.uint64 and array.max(initial=0) > 2**63 - 1):
        raise ValueError(f"{name} must be below 2**63")
    return array.astype(np.int64, copy=False)
