"""Flat documents to tensors on a device: one narrow copy, everything else computed there.

Nothing is read back, so the host never waits. All of it runs on a CPU device too, and gives there what
`host_placing` gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from raypack.choices import IGNORE_INDEX
from raypack.collate.layout.batch_tensors import BatchTensors
from raypack.collate.layout.flat import FlatDocuments, Tokens


def carry(arrays: list[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Copy (n,) integer arrays to a device in one go, as int32; the caller's memory is only read.

    They reach CUDA through pinned memory, so that the copy is asynchronous to the host.
    """
    sizes = [len(array) for array in arrays]
    staged = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    for part, array in zip(staged.split(sizes), arrays, strict=True):
        np.copyto(part.numpy(), array, casting="same_kind")
    landed = staged if device.type == "cpu" else staged.to(device, non_blocking=True)
    return list(landed.split(sizes))


def place_packed(
    flat: FlatDocuments, offsets: npt.NDArray[np.int32], size: int, pad_id: int, device: torch.device
) -> BatchTensors:
    """Lay documents one after another in one row of ``size`` tokens, padding last.

    Args:
        flat: the documents, on the host or already on a device.
        offsets: (slots + 1,) their offsets, the last one repeated.
        size: tokens of the row, at least ``flat.total``.
        pad_id: the id on padding.
        device: where the tensors are made.

    Returns:
        Tensors of shape (1, size).
    """
    total = flat.total
    cu_seqlens, narrow_ids, narrow_labels = _carried(flat, offsets, device)
    ids, labels = torch.empty((2, size), dtype=torch.int64, device=device).unbind()
    ids[:total].copy_(narrow_ids, non_blocking=True)
    labels[:total].copy_(ids[:total] if narrow_labels is None else narrow_labels, non_blocking=True)
    ids[total:].fill_(pad_id)
    labels[total:].fill_(IGNORE_INDEX)
    labels.index_fill_(0, _starts(flat, cu_seqlens), IGNORE_INDEX)
    positions, segments = count(cu_seqlens, total, size)
    return BatchTensors(ids[None], labels[None], positions[None], segments[None], cu_seqlens)


def count(cu_seqlens: torch.Tensor, total: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Count (size,) positions and segment ids where the offsets lie; both are 0 on padding."""
    owner = _owners(cu_seqlens, total)
    positions = torch.arange(size, dtype=torch.int64, device=cu_seqlens.device)
    segments = torch.zeros(size, dtype=torch.int32, device=cu_seqlens.device)
    positions[:total].sub_(cu_seqlens[:-1].index_select(0, owner))
    torch.add(owner, 1, out=segments[:total])
    positions[total:].zero_()
    return positions, segments


def place_padded(
    flat: FlatDocuments,
    offsets: npt.NDArray[np.int32],
    size: int,
    pad_id: int,
    device: torch.device,
    *,
    left: bool,
) -> BatchTensors:
    """Lay each document in a row of its own of ``size`` tokens.

    Args:
        flat: the documents, on the host or already on a device; none gives one row of padding.
        offsets: (slots + 1,) as in `place_packed`; a slot without a document is a row of padding.
        size: tokens of a row, at least ``flat.max_seqlen``.
        pad_id: the id on padding.
        device: where the tensors are made.
        left: padding before the document instead of after it.

    Returns:
        Tensors of shape (rows, size).
    """
    total, rows = flat.total, max(len(offsets) - 1, 1)
    cu_seqlens, narrow_ids, narrow_labels = _carried(flat, offsets, device)
    owner = _owners(cu_seqlens, total)
    flat_positions = torch.arange(total, device=device).sub_(cu_seqlens[:-1].index_select(0, owner))
    first_slots = torch.arange(len(offsets) - 1, device=device).mul_(size)
    if left:
        first_slots += size - cu_seqlens.diff()
    slots = first_slots.index_select(0, owner).add_(flat_positions)

    def spread(values: torch.Tensor, fill: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        cells = torch.full((rows * size,), fill, dtype=dtype, device=device)
        return cells.index_copy_(0, slots, values.to(dtype)).view(rows, size)

    marks = (narrow_ids if narrow_labels is None else narrow_labels).long()
    marks = marks.masked_fill(flat_positions == 0, IGNORE_INDEX)
    ids, labels = spread(narrow_ids, pad_id), spread(marks, IGNORE_INDEX)
    segments = spread(torch.ones_like(slots), 0, torch.int32)
    return BatchTensors(ids, labels, spread(flat_positions, 0), segments, cu_seqlens)


def _carried(
    flat: FlatDocuments, offsets: npt.NDArray[np.int32], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the offsets, ids and labels on the device, as narrow as they came."""
    values: list[Tokens | None] = [offsets, flat.input_ids, flat.labels]
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    landed = iter(carry(arrays, device))
    cu_seqlens, ids, labels = (
        next(landed) if isinstance(value, np.ndarray) else _moved(value, device) for value in values
    )
    assert cu_seqlens is not None
    assert ids is not None
    return cu_seqlens, ids, labels


def _moved(values: Tokens | None, device: torch.device) -> torch.Tensor | None:
    return values.to(device, non_blocking=True) if isinstance(values, torch.Tensor) else None


def _starts(flat: FlatDocuments, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """Return where real documents start; the repeated last offset is not one of them."""
    return cu_seqlens[: flat.documents].long()


def _owners(cu_seqlens: torch.Tensor, total: int) -> torch.Tensor:
    """Number, from 0, the document of each of ``total`` tokens, int32; a known size needs no sync."""
    return torch.repeat_interleave(cu_seqlens.diff(), output_size=total)
