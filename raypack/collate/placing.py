"""Flat documents to tensors on a device: narrow copies, everything else computed there."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from raypack.collate.flat import IGNORED, FlatDocuments, Tokens

Placed: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""input_ids, labels, position_ids (int64) and segment_ids (int32), of one shape."""


def upload(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy a numpy array to a device as int32; the caller's memory is only read.

    Pinned memory carries it to CUDA, so that the copy runs behind the host.
    """
    staged = torch.empty(values.shape, dtype=torch.int32, pin_memory=device.type == "cuda")
    np.copyto(staged.numpy(), values, casting="same_kind")
    return staged if device.type == "cpu" else staged.to(device, non_blocking=True)


def widen(values: Tokens, out: torch.Tensor) -> None:
    """Copy integers into an int64 tensor; int32 is what travels to another device."""
    if isinstance(values, torch.Tensor):
        out.copy_(values, non_blocking=True)
    elif out.device.type == "cpu":
        np.copyto(out.numpy(), values, casting="same_kind")
    else:
        out.copy_(upload(values, out.device))


def place_packed(flat: FlatDocuments, cu_seqlens: torch.Tensor, size: int, pad_id: int) -> Placed:
    """Lay documents one after another in one row of ``size`` tokens, padding last.

    Args:
        flat: the documents on the host.
        cu_seqlens: (documents + 1,) int32 offsets on the device.
        size: tokens of the row, at least ``flat.total``.
        pad_id: the id on padding.

    Returns:
        Four (1, size) tensors on the device of ``cu_seqlens``.
    """
    device, total = cu_seqlens.device, flat.total
    ids, labels = torch.empty((2, size), dtype=torch.int64, device=device).unbind()
    widen(flat.input_ids, ids[:total])
    ids[total:].fill_(pad_id)
    _fill_labels(flat, ids, labels, cu_seqlens[:-1].long())
    if device.type == "cpu":
        positions, segments = count_on_host(flat.offsets, size)
    else:
        positions, segments = count_on_device(cu_seqlens, total, size)
    return ids[None], labels[None], positions[None], segments[None]


def count_on_host(offsets: npt.NDArray[np.int32], size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Count (size,) positions and segment ids with numpy, whose calls cost less than torch's."""
    total, lengths = int(offsets[-1]), np.diff(offsets)
    positions, segments = np.empty(size, dtype=np.int64), np.zeros(size, dtype=np.int32)
    np.subtract(np.arange(total), np.repeat(offsets[:-1], lengths), out=positions[:total])
    segments[:total] = np.repeat(np.arange(1, len(lengths) + 1, dtype=np.int32), lengths)
    positions[total:] = 0
    return torch.from_numpy(positions), torch.from_numpy(segments)


def count_on_device(cu_seqlens: torch.Tensor, total: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Count (size,) positions and segment ids where the offsets lie; nothing is read back."""
    owner = _owners(cu_seqlens, total)
    positions = torch.arange(size, dtype=torch.int64, device=cu_seqlens.device)
    segments = torch.zeros(size, dtype=torch.int32, device=cu_seqlens.device)
    positions[:total].sub_(cu_seqlens[:-1].index_select(0, owner))
    torch.add(owner, 1, out=segments[:total])
    positions[total:].zero_()
    return positions, segments


def place_padded(
    flat: FlatDocuments, cu_seqlens: torch.Tensor, size: int, pad_id: int, *, left: bool
) -> Placed:
    """Lay each document in a row of its own of ``size`` tokens.

    Args:
        flat: the documents on the host; none gives one row of padding.
        cu_seqlens: (documents + 1,) int32 offsets on the device.
        size: tokens of a row, at least ``flat.max_seqlen``.
        pad_id: the id on padding.
        left: padding before the document instead of after it.

    Returns:
        Four (rows, size) tensors on the device of ``cu_seqlens``.
    """
    device, total = cu_seqlens.device, flat.total
    shape = (max(flat.documents, 1), size)
    flat_ids, flat_labels = torch.empty((2, total), dtype=torch.int64, device=device).unbind()
    widen(flat.input_ids, flat_ids)
    starts = cu_seqlens[:-1].long()
    _fill_labels(flat, flat_ids, flat_labels, starts)
    owner = _owners(cu_seqlens, total)
    flat_positions = torch.arange(total, device=device).sub_(starts.index_select(0, owner))
    first_slots = torch.arange(flat.documents, device=device).mul_(size)
    if left:
        first_slots += size - cu_seqlens.diff()
    slots = first_slots.index_select(0, owner).add_(flat_positions)

    def spread(values: torch.Tensor, fill: int) -> torch.Tensor:
        rows = torch.full((shape[0] * size,), fill, dtype=values.dtype, device=device)
        return rows.index_copy_(0, slots, values).view(shape)

    segments = torch.ones(total, dtype=torch.int32, device=device)
    ids, labels = spread(flat_ids, pad_id), spread(flat_labels, IGNORED)
    return ids, labels, spread(flat_positions, 0), spread(segments, 0)


def _fill_labels(flat: FlatDocuments, ids: torch.Tensor, labels: torch.Tensor, starts: torch.Tensor) -> None:
    """Write the labels: ignored on padding and on each document's first token."""
    total = flat.total
    if flat.labels is None:
        labels[:total].copy_(ids[:total])
    else:
        widen(flat.labels, labels[:total])
    labels[total:].fill_(IGNORED)
    labels.index_fill_(0, starts, IGNORED)


def _owners(cu_seqlens: torch.Tensor, total: int) -> torch.Tensor:
    """Number, from 0, the document of each of ``total`` tokens, int32; a known size needs no sync."""
    return torch.repeat_interleave(cu_seqlens.diff(), output_size=total)
