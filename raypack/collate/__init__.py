"""Rows to tensors on a device: batches, masks, and the arguments of each attention backend."""

from raypack.collate.attention.isolation import assert_isolated
from raypack.collate.attention.pick import AttentionChoice, pick_attention
from raypack.collate.batch import PackedBatch
from raypack.collate.loss import next_token_loss_sum
from raypack.collate.masks.dense import build_attention_mask
from raypack.errors import BatchError, IsolationError

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
