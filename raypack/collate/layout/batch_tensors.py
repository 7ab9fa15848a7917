"""What placing gives: the tensors of a batch."""

from __future__ import annotations

from typing import NamedTuple

import torch


class BatchTensors(NamedTuple):
    """Tensors of one device: four of (1, T) or (B, S), and the offsets."""

    input_ids: torch.Tensor
    """int64."""
    labels: torch.Tensor
    """int64."""
    position_ids: torch.Tensor
    """int64."""
    segment_ids: torch.Tensor
    """int32."""
    cu_seqlens: torch.Tensor
    """(slots + 1,) int32."""
