"""Rows to tensors on a device: batches, masks, and what each attention backend must be told."""

from raypack.collate.batch import PackedBatch
from raypack.collate.errors import BatchError, IsolationError

__all__ = ["BatchError", "IsolationError", "PackedBatch"]
