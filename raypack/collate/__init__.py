"""Rows to tensors on a device: batches, masks, and what each attention backend must be told."""

from raypack.collate.batch import PackedBatch
from raypack.collate.errors import BatchError, IsolationError
from raypack.collate.isolation import assert_isolated
from raypack.collate.loss import next_token_loss_sum
from raypack.collate.mask import build_attention_mask
from raypack.collate.pick import AttentionChoice, pick_attention

__all__ = [
    "AttentionChoice",
    "BatchError",
    "IsolationError",
    "PackedBatch",
    "assert_isolated",
    "build_attention_mask",
    "next_token_loss_sum",
    "pick_attention",
]
