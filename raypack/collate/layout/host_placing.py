"""Flat documents to tensors on the CPU, by numpy: its calls cost a fraction of torch's at these sizes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from raypack.choices import IGNORE_INDEX
from raypack.collate.layout.batch_tensors import BatchTensors
from raypack.collate.layout.flat import FlatDocuments, Tokens

CACHED_BITS = 20
"""Log2 of the integers that are kept to count with: 8 MiB of them at the most."""


def place_packed(flat: FlatDocuments, offsets: npt.NDArray[np.int32], size: int, pad_id: int) -> BatchTensors:
    """Lay documents one after another in one row of ``size`` tokens, padding last.

    Args:
        flat: the documents.
        offsets: (slots + 1,) their offsets, the last one repeated; the batch keeps this memory.
        size: tokens of the row, at least ``flat.total``.
        pad_id: the id on padding.

    Returns:
        Tensors of shape (1, size).
    """
    ids, labels = _tokens(flat, size, pad_id)
    positions, segments = _count(flat.offsets, size)
    return _placed(ids[None], labels[None], positions[None], segments[None], offsets)


def place_padded(
    flat: FlatDocuments, offsets: npt.NDArray[np.int32], size: int, pad_id: int, *, left: bool
) -> BatchTensors:
    """Lay each document in a row of its own of ``size`` tokens.

    Args:
        flat: the documents; none gives one row of padding.
        offsets: (slots + 1,) as in `place_packed`; a slot without a document is a row of padding.
        size: tokens of a row, at least ``flat.max_seqlen``.
        pad_id: the id on padding.
        left: padding before the document instead of after it.

    Returns:
        Tensors of shape (rows, size).
    """
    rows = max(len(offsets) - 1, 1)
    lengths = np.zeros((rows, 1), dtype=np.int64)
    lengths[: flat.documents, 0] = np.diff(flat.offsets)
    positions = _numbers(size) - (size - lengths if left else 0)
    real = positions >= 0 if left else positions < lengths
    ids, labels = np.full((rows, size), pad_id), np.full((rows, size), IGNORE_INDEX)
    ids[real], labels[real] = _tokens(flat, flat.total, pad_id)
    return _placed(ids, labels, np.where(real, positions, 0), real.astype(np.int32), offsets)


def _tokens(
    flat: FlatDocuments, size: int, pad_id: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (size,) ids and labels; labels are ignored on padding and on each document's first token."""
    total, source = flat.total, _on_host(flat.input_ids)
    marks = source if flat.labels is None else _on_host(flat.labels)
    ids, labels = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    np.copyto(ids[:total], source, casting="same_kind")
    np.copyto(labels[:total], marks, casting="same_kind")
    labels[flat.offsets[:-1]] = IGNORE_INDEX
    if total < size:
        ids[total:], labels[total:] = pad_id, IGNORE_INDEX
    return ids, labels


def _count(offsets: npt.NDArray[np.int32], size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return (size,) positions and segment ids; both are 0 on padding.

    Args:
        offsets: (documents + 1,); padding is counted as one more stretch.
        size: tokens of the row.
    """
    total = int(offsets[-1])
    edges = offsets if total == size else np.append(offsets, np.int32(size))
    starts, widths = edges[:-1], edges[1:] - edges[:-1]
    positions = starts.astype(np.int64).repeat(widths)
    np.subtract(_numbers(size), positions, out=positions)
    segments = np.arange(1, len(edges), dtype=np.int32).repeat(widths)
    if total < size:
        positions[total:], segments[total:] = 0, 0
    return positions, segments


def _numbers(count: int) -> npt.NDArray[np.int64]:
    """Return (count,) integers from 0; small ones are made once a power of two, and only read."""
    bits = max(count - 1, 0).bit_length()
    return _numbers_of(bits)[:count] if bits <= CACHED_BITS else np.arange(count)


@cache
def _numbers_of(bits: int) -> npt.NDArray[np.int64]:
    numbers = np.arange(1 << bits)
    numbers.flags.writeable = False
    return numbers


def _on_host(values: Tokens) -> npt.NDArray[Any]:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else values


def _placed(*arrays: npt.NDArray[Any]) -> BatchTensors:
    return BatchTensors(*map(torch.from_numpy, arrays))
