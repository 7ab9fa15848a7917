"""Dense attention masks on a device, from the boundaries of documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from raypack.arguments import choice, optional_integer, shown, type_name
from raypack.collate.masks import host_raster
from raypack.collate.masks.device_raster import rasterize_on_device
from raypack.collate.masks.intervals import (
    KINDS,
    PAD_ROWS,
    Array,
    Runs,
    host_runs_of_offsets,
    host_runs_of_segments,
    key_intervals,
    prefix_stops,
    runs_of_offsets,
    runs_of_segments,
)
from raypack.errors import BatchError

Integers: TypeAlias = "Sequence[int] | Sequence[Sequence[int]] | npt.NDArray[Any] | torch.Tensor"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def build_attention_mask(
    cu_seqlens: Integers | None = None,
    total: int | None = None,
    dtype: torch.dtype | None = None,
    *,
    segment_ids: Integers | None = None,
    device: torch.device | str | None = None,
    kind: str = "causal",
    window: int | None = None,
    prefix_lengths: Integers | None = None,
    pad_rows: str = "blocked",
) -> torch.Tensor:
    """Build the dense mask that keeps packed documents apart.

    The mask is written once, in its own dtype, where the tensors lie; nothing of its size is allocated
    beside it. On CUDA one Triton kernel writes it, and nothing is read back from the device, so offsets
    that do not rise are only refused on the CPU.

    Args:
        cu_seqlens: (documents + 1,) rising integers from 0, the last of which may be repeated; tokens
            past it are padding.
        total: S, the tokens of the row; None: the last offset (which then must lie on the host).
        dtype: float16, bfloat16, float32 or float64 for a mask that is added to the scores (0, or the
            dtype's finite minimum), bool for one where True means: may attend. Take the dtype that
            attention computes in: a minimum that is cast to a narrower dtype becomes -inf.
        segment_ids: (B, S) ids instead of offsets; 0 is padding, and an id that comes again later in
            its row is the same document.
        device: where the mask is built; None: where the boundaries lie.
        kind: ``"causal"``, ``"bidirectional"`` or ``"prefix"`` (causal, and every token of a document
            sees its first ``prefix_lengths`` tokens).
        window: a query sees keys less than this many tokens away, itself included; None: all.
        prefix_lengths: (documents,) with offsets, (B, D) with segment ids: tokens of each document's
            prefix; the entry of segment id d is d - 1, and a document
            in several stretches has the prefix in each.
        pad_rows: ``"blocked"``: padding sees nothing; ``"self"``: a padding token sees itself, for
            kernels that give NaN where nothing may be seen. Nothing ever sees padding otherwise.

    Returns:
        (1, 1, total, total), or (B, 1, S, S) from segment ids.

    Raises:
        TypeError: something has the wrong type.
        BatchError: boundaries, sizes and options do not fit together.
    """
    values = _values(dtype)
    kind = choice("kind", kind, KINDS, error=BatchError)
    pad_rows = choice("pad_rows", pad_rows, PAD_ROWS, error=BatchError)
    window = optional_integer("window", window, minimum=1, error=BatchError)
    runs = _runs(cu_seqlens, total, segment_ids, device)
    prefix = _prefix(runs, kind, prefix_lengths)
    rows, length = runs.ids.shape
    mask = host_raster.unwritten((rows, length, length), dtype, runs.device)
    on_host = mask.device.type == "cpu"
    within_runs = segment_ids is None or (on_host and not _scattered(runs))
    intervals = key_intervals(runs, kind, window, pad_rows, prefix, within_runs=within_runs)
    if not on_host:
        rasterize_on_device(mask, None if within_runs else runs.ids, intervals, values)
    elif within_runs:
        host_raster.rasterize_on_host(mask, intervals, values)
    else:
        host_raster.rasterize_scattered_on_host(mask, runs.ids, intervals, values)
    return mask.unsqueeze(1)


def _values(dtype: torch.dtype | None) -> tuple[float, float]:
    """Return what stands where a query may attend, and where it may not."""
    if dtype is torch.bool:
        return True, False
    if dtype not in FLOATS:
        raise TypeError(
            f"dtype must be torch.bool or one of {', '.join(map(str, FLOATS))}, got {shown(dtype)}; "
            "take the dtype that attention computes in"
        )
    return 0.0, torch.finfo(dtype).min


def _runs(
    cu_seqlens: Integers | None,
    total: int | None,
    segment_ids: Integers | None,
    device: torch.device | str | None,
) -> Runs:
    if (cu_seqlens is None) == (segment_ids is None):
        raise BatchError("cu_seqlens or segment_ids must be given, and not both")
    if segment_ids is not None:
        ids = _tensor("segment_ids", segment_ids, device, 2)
        if total is not None and total != ids.shape[1]:
            raise BatchError(f"total must be left out with segment_ids of S={ids.shape[1]}, got {total}")
        if ids.device.type != "cpu":
            return runs_of_segments(ids)
        least = ids.numpy().min(initial=0)
        if least < 0:
            raise BatchError(f"segment_ids must not be negative, got {least}")
        return host_runs_of_segments(ids.numpy())
    assert cu_seqlens is not None
    offsets = _tensor("cu_seqlens", cu_seqlens, None, 1)
    size = _total(offsets, total)
    offsets = offsets if device is None else offsets.to(device)
    if offsets.device.type != "cpu":
        return runs_of_offsets(offsets, size)
    return host_runs_of_offsets(offsets.numpy(), size)


def _total(offsets: torch.Tensor, total: int | None) -> int:
    """Check offsets that lie on the host, and return the tokens of the row."""
    total = optional_integer("total", total, minimum=0, error=BatchError)
    if offsets.shape[0] == 0:
        raise BatchError("cu_seqlens must be non-empty; no document is [0]")
    if offsets.device.type != "cpu":
        if total is None:
            raise BatchError(f"total must be given with cu_seqlens on {offsets.device}, got None")
        return total
    edges = offsets.numpy()
    if edges[0] != 0:
        raise BatchError(f"cu_seqlens must start at 0, got {edges[0]}")
    last = int(edges[-1])
    falls = edges[:-1] >= edges[1:]
    if falls.any():
        falls &= (edges[1:] != last) | (edges[:-1] > last)
        at = int(falls.argmax())
        if falls[at]:
            raise BatchError(f"cu_seqlens must rise, got {edges[at]} >= {edges[at + 1]} at index {at}")
    if total is not None and total < last:
        raise BatchError(f"total must hold the {last} tokens of cu_seqlens, got {total}")
    return last if total is None else total


def _prefix(runs: Runs, kind: str, prefix_lengths: Integers | None) -> Array | None:
    if (kind == "prefix") != (prefix_lengths is not None):
        got = "None" if prefix_lengths is None else "some"
        raise BatchError(f"prefix_lengths go with kind='prefix' and with no other; got {got} and {kind!r}")
    if prefix_lengths is None:
        return None
    lengths = _tensor("prefix_lengths", prefix_lengths, runs.device, None)
    lengths = lengths[None] if lengths.ndim == 1 else lengths
    if lengths.ndim != 2 or lengths.shape[0] != runs.ids.shape[0]:
        raise BatchError(
            f"prefix_lengths must be (documents,) or ({runs.ids.shape[0]}, documents), "
            f"got shape {tuple(lengths.shape)}"
        )
    if lengths.device.type == "cpu" and lengths.numel() and lengths.min() < 0:
        raise BatchError(f"prefix_lengths must not be negative, got {int(lengths.min())}")
    return prefix_stops(runs, lengths.clamp(max=runs.ids.shape[1]))  # larger ones would overflow


def _scattered(runs: Runs) -> bool:
    """Whether an id of a document comes again later in its row; reads the ids on the host."""
    heads = np.where(runs.starts == runs.places, runs.ids, 0)
    for row in heads:
        documents = row[row != 0].tolist()
        if len(set(documents)) < len(documents):
            return True
    return False


def _tensor(
    name: str, values: Integers, device: torch.device | str | None, dimensions: int | None
) -> torch.Tensor:
    if not isinstance(values, torch.Tensor):
        if isinstance(values, np.ndarray):
            array = values
        else:
            array = np.array(values, dtype=None if len(values) else np.int64)
        if array.dtype.kind not in "iu":
            raise TypeError(f"{name} must hold integers, got {type_name(values)} of {array.dtype}")
        values = torch.from_numpy(array.astype(np.int64))
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype is torch.bool:
        raise TypeError(f"{name} must hold integers, got {values.dtype}")
    if dimensions is not None and values.ndim != dimensions:
        raise BatchError(f"{name} must be {dimensions}-D, got shape {tuple(values.shape)}")
    return values if device is None else values.to(device)
