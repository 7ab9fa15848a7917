"""Packed batches from a Ray dataset of the caller's own, for plain ``iter_torch_batches``."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from ray.data.collate_fn import ArrowBatchCollateFn

from raypack.arguments import text
from raypack.collate import BatchError, PackedBatch
from raypack.collate.layout.batch_shape import BatchShape
from raypack.data.arrow_rows import flat_column, integer_column


class DeviceCollate(ArrowBatchCollateFn):
    """Makes one `PackedBatch` on a device from all rows of an Arrow batch.

    For ``dataset.iter_torch_batches(batch_size=…, collate_fn=DeviceCollate(…))``; ``batch_size`` counts
    documents. Tokens go from Arrow's memory to the batch without Python lists. It keeps no state, so
    that Ray Data may call it from several threads; on CUDA it works on the device's default stream.

    Args:
        column: of lists of token ids.
        labels_column: of lists of labels, as long as the ids; used where the batch has it. None: the
            ids are the labels.
        index_column: of integers that become the batch's ``indices``; None: 0, 1, 2, …
        device: where batches are made, as ``ray.train.torch.get_device()`` gives it in a train
            worker; None: torch's default device where this object is made.
        layout: this and what follows as in `PackedBatch.from_flat`.
        pad_to_multiple: round T or S up.
        pad_to: T or S itself.
        pad_documents_to: document slots of ``cu_seqlens``, or rows.
        pad_id: the token id on padding.
        padding_side: ``"right"``, or ``"left"`` under the padded layout.
        position_offset: position of a document's first token.

    Raises:
        TypeError: an argument has the wrong type.
        BatchError: sizes or names do not fit.
    """

    def __init__(
        self,
        *,
        column: str = "input_ids",
        labels_column: str | None = "labels",
        index_column: str | None = None,
        device: torch.device | str | None = None,
        layout: str | enum.Enum = "packed",
        pad_to_multiple: int | None = None,
        pad_to: int | None = None,
        pad_documents_to: int | None = None,
        pad_id: int = 0,
        padding_side: str = "right",
        position_offset: int = 0,
    ) -> None:
        self._column = text("column", column, error=BatchError)
        self._labels = _optional_name("labels_column", labels_column)
        self._index = _optional_name("index_column", index_column)
        # Said here: torch's default device is one of the thread, and Ray Data calls from others.
        self._device = torch.empty(0).device if device is None else torch.device(device)
        self._shape = BatchShape.parse(
            layout=layout,
            pad_to_multiple=pad_to_multiple,
            pad_to=pad_to,
            pad_documents_to=pad_documents_to,
            pad_id=pad_id,
            padding_side=padding_side,
            position_offset=position_offset,
        )

    def __call__(self, batch: pa.Table) -> PackedBatch:
        """Pack the rows of a batch.

        Raises:
            TypeError: a column does not hold lists of integers.
            BatchError: a column is missing, has nulls or empty rows, or does not fit the others.
        """
        input_ids, lengths = flat_column(batch, self._column)
        return PackedBatch.from_flat(
            input_ids,
            lengths,
            labels=self._labels_of(batch, lengths),
            indices=None if self._index is None else integer_column(batch, self._index),
            device=self._device,
            layout=self._shape.layout,
            pad_to_multiple=self._shape.pad_to_multiple,
            pad_to=self._shape.pad_to,
            pad_documents_to=self._shape.pad_documents_to,
            pad_id=self._shape.pad_id,
            padding_side=self._shape.padding_side,
            position_offset=self._shape.position_offset,
        )

    def _labels_of(self, batch: pa.Table, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        if self._labels is None or self._labels not in batch.column_names:
            return None
        labels, others = flat_column(batch, self._labels)
        wrong = np.flatnonzero(others != lengths)
        if wrong.size:
            row = int(wrong[0])
            raise BatchError(
                f"column {self._labels!r} must be as long as {self._column!r} in each row, got {others[row]} "
                f"labels for {lengths[row]} tokens at row {row} of the batch"
            )
        return labels


def _optional_name(argument: str, value: str | None) -> str | None:
    return None if value is None else text(argument, value, error=BatchError)
