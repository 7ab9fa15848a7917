"""The next-token loss of a packed batch, as a sum, so that batches of any size add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from raypack.choices import IGNORE_INDEX
from raypack.errors import BatchError

CHUNK_CELLS = 2**24
"""Logits converted to float32 at a time: 64 MiB."""


def next_token_loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum the cross entropy of each token's successor over what is supervised.

    Labels are aligned with the tokens, as in `PackedBatch`: the shift happens here, so that the logits
    at position t are judged by the label at t + 1. Half precisions are summed in float32, a chunk of
    tokens at a time in both directions: no float32 copy of the logits is made or kept. A batch with
    nothing supervised gives 0, and zero gradients. Nothing is read back from the device.

    Args:
        logits: (B, S, V) float16, bfloat16, float32 or float64.
        labels: (B, S) int64, -100 where nothing is to be learnt.

    Returns:
        A scalar, float64 for float64 logits and float32 for all others.

    Raises:
        TypeError: the logits are no float tensor, or the labels no int64 tensor.
        BatchError: the shapes do not fit.
    """
    if not logits.dtype.is_floating_point:
        raise TypeError(f"logits must be a float tensor, got {logits.dtype}")
    if labels.dtype is not torch.int64:
        raise TypeError(f"labels must be int64, got {labels.dtype}")
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise BatchError(
            f"logits must be (B, S, V) and labels (B, S), got {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    loss: torch.Tensor = _NextTokenLossSum.apply(logits, labels)
    return loss


class _NextTokenLossSum(torch.autograd.Function):
    """The sum, with a backward pass that recomputes the softmax instead of storing it."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sum over chunks of tokens; keep the logits as they are and one number a token."""
        rows, targets = logits.flatten(0, 1), _successors(labels)
        kind = torch.promote_types(logits.dtype, torch.float32)
        normalizers = torch.empty(rows.shape[0], dtype=kind, device=logits.device)
        losses = torch.empty_like(normalizers)
        for part in _chunks(rows):
            wide, target = rows[part].to(kind), targets[part]
            ignored = target == IGNORE_INDEX
            picked = wide.gather(1, target.masked_fill(ignored, 0)[:, None])[:, 0]
            torch.logsumexp(wide, dim=1, out=normalizers[part])
            losses[part] = (normalizers[part] - picked).masked_fill_(ignored, 0)
        ctx.save_for_backward(logits, targets, normalizers)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return softmax minus one-hot, times the gradient of the sum; 0 where nothing is supervised."""
        logits, targets, normalizers = ctx.saved_tensors
        rows, kind = logits.flatten(0, 1), normalizers.dtype
        grads = torch.empty(rows.shape, dtype=logits.dtype, device=logits.device)
        for part in _chunks(rows):
            target = targets[part]
            ignored = target == IGNORE_INDEX
            slope = rows[part].to(kind, copy=True).sub_(normalizers[part, None]).exp_()
            hit = target.masked_fill(ignored, 0)[:, None]
            slope.scatter_add_(1, hit, torch.full_like(hit, -1, dtype=kind)).mul_(grad)
            grads[part] = slope.masked_fill_(ignored[:, None], 0)
        return grads.view(logits.shape), None


def _successors(labels: torch.Tensor) -> torch.Tensor:
    """Return the label of each token's successor, (B * S,); a row's last token has none."""
    shifted = torch.full_like(labels, IGNORE_INDEX)
    shifted[:, :-1] = labels[:, 1:]
    return shifted.flatten()


def _chunks(rows: torch.Tensor) -> Iterator[slice]:
    """Cut (tokens, V) rows so that a chunk holds at most `CHUNK_CELLS` cells."""
    step = max(1, CHUNK_CELLS // max(rows.shape[1], 1))
    for start in range(0, rows.shape[0], step):
        yield slice(start, min(start + step, rows.shape[0]))
