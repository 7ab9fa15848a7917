"""One attention layer that calls a kernel directly: tests the exporters that need no model library."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from raypack.audit.doctor.tiny_model import HEAD_DIM, VOCABULARY

Attend = Callable[..., torch.Tensor]


class PlainLayer:
    """Embeds tokens at random and applies attention; the output serves as logits.

    Args:
        attend: from x, (tokens, heads, head size), and the exporter's arguments to the same shape.
        device: where the layer lies.
        dtype: of its embeddings.
    """

    def __init__(self, attend: Attend, device: torch.device, dtype: torch.dtype) -> None:
        shape = (VOCABULARY, 2, HEAD_DIM)
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        self._table = drawn.to(device=device, dtype=dtype)
        self._attend = attend

    def __call__(self, input_ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
        """Return (1, T, heads · head size) for (1, T) ids."""
        return self._attend(self._table[input_ids[0]], **arguments).flatten(1)[None]


def flex_layer(x: torch.Tensor, block_mask: Any) -> torch.Tensor:
    """Attend by torch's ``flex_attention``."""
    from torch.nn.attention.flex_attention import flex_attention

    rows = x.transpose(0, 1)[None]
    out = flex_attention(rows, rows, rows, block_mask=block_mask)
    assert isinstance(out, torch.Tensor)
    return out[0].transpose(0, 1)


def varlen_layer(x: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """Attend by torch's ``varlen_attn``."""
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(x, x, x, **arguments)
    assert isinstance(out, torch.Tensor)
    return out


def varlen_obstacle(device: torch.device) -> str | None:
    """Return why torch's ``varlen_attn`` cannot run."""
    if device.type != "cuda":
        return f"varlen_attn needs CUDA, the device is {device.type}"
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return "this torch has no varlen_attn"
    return None
