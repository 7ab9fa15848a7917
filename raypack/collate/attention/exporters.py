"""The exact arguments with which each attention backend isolates documents: no more, no fewer.

An argument that is missing is omitted on purpose. transformers forgets the boundaries of a packed row as soon
as it is given a two-dimensional mask or makes a cache; an added minimum that is cast becomes -inf; a
varlen kernel leaves what its offsets do not cover undefined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from raypack.arguments import choice, optional_integer, type_name
from raypack.choices import IGNORE_INDEX
from raypack.collate.attention.layer_types import has_recurrent_layers, layer_windows, mask_by_layer
from raypack.collate.layout.batch_shape import PACKED
from raypack.collate.masks.dense import build_attention_mask
from raypack.errors import BatchError

if TYPE_CHECKING:
    from raypack.collate.batch import PackedBatch

Arguments = dict[str, Any]


def hf_sdpa(batch: PackedBatch, model_or_config: Any = None, kind: str = "causal") -> Arguments:
    """Return the arguments of a transformers model with ``attn_implementation="sdpa"``.

    transformers reads the boundaries from the positions, and builds the mask of each kind of attention
    layer itself, sliding windows included. A row of one document padded on its right needs nothing at all
    where positions count from 0.
    """
    if choice("kind", kind, ("causal", "bidirectional"), error=BatchError) == "bidirectional":
        mask = build_attention_mask(
            segment_ids=batch.segment_ids, dtype=torch.bool, kind=kind, pad_rows="self"
        )
        return _with_mask(batch, mask)
    if has_recurrent_layers(model_or_config):
        return {**_positions(batch), **linear_attention(batch)}
    return _ids_alone(batch) or _positions(batch)


def hf_eager(batch: PackedBatch, dtype: torch.dtype, model_or_config: Any, kind: str) -> Arguments:
    """Return the arguments of a transformers model with ``attn_implementation="eager"``.

    The mask is added to the scores, in the dtype that they are computed in. A causal row of one document
    padded on its right needs none where positions count from 0, and some architectures take none.
    """
    kind = choice("kind", kind, ("causal", "bidirectional"), error=BatchError)
    if dtype is torch.bool:
        raise BatchError("dtype must be a float for eager attention, which adds its mask; got torch.bool")
    alone = _ids_alone(batch)
    if kind == "causal" and alone is not None:
        return alone

    def mask(window: int | None) -> torch.Tensor:
        return build_attention_mask(
            segment_ids=batch.segment_ids, dtype=dtype, kind=kind, window=window, pad_rows="self"
        )

    return _with_mask(batch, mask_by_layer(layer_windows(model_or_config), mask))


def hf_flash(batch: PackedBatch) -> Arguments:
    """Return the arguments of a transformers model with a flash attention implementation.

    Packed: the offsets, all four of them, and no mask. Padded: the two-dimensional mask, which
    transformers removes the padding by, where there is padding beside real tokens.
    """
    inputs = _positions(batch)
    if batch.layout != PACKED:
        if batch.num_padding and batch.num_tokens:
            inputs["attention_mask"] = (batch.segment_ids != 0).long()
        return inputs
    return {**inputs, **linear_attention(batch)}


def linear_attention(batch: PackedBatch) -> Arguments:
    """Return what recurrent layers of transformers (linear attention, Mamba, convolutions) need in addition.

    They see no mask and no positions: without ``seq_idx`` and the offsets, one document's state runs
    into the next. Rows of one document with padding after it need nothing.

    Raises:
        BatchError: padding lies before the documents.
    """
    if batch.layout != PACKED:
        if batch.padding_side == "left":
            raise BatchError(
                "padding_side must be 'right' for recurrent layers, got 'left': padding would run into the "
                "document's state"
            )
        return {}
    offsets, longest = closed_offsets(batch)
    return {
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": closed_segments(batch) - 1,
    }


def trl(batch: PackedBatch) -> Arguments:
    """Return what TRL's padding-free collator gives its trainers, under its names; never a mask.

    Raises:
        BatchError: the batch is not packed.
    """
    closed_offsets(batch)
    return {**hf_flash(batch), "labels": batch.labels}


def hf_loss(batch: PackedBatch, num_items: float | torch.Tensor | None) -> Arguments:
    """Return what a transformers model computes its loss from, in addition to its other arguments.

    transformers divides the sum by ``num_items_in_batch``, and takes the mean without it, which is NaN
    where nothing is supervised. So it is always given, and never 0.
    """
    if num_items is None:
        num_items = batch.num_supervised
    if num_items is None:
        num_items = (batch.labels[:, 1:] != IGNORE_INDEX).sum()
    if isinstance(num_items, torch.Tensor):
        return {"labels": batch.labels, "num_items_in_batch": torch.where(num_items == 0, 1, num_items)}
    if isinstance(num_items, bool) or not isinstance(num_items, (int, float)):
        raise TypeError(f"num_items must be a number or a tensor, got {type_name(num_items)}")
    if not num_items >= 0:
        raise BatchError(f"num_items must not be negative, got {num_items}")
    return {"labels": batch.labels, "num_items_in_batch": num_items or 1}


def hf_flex(batch: PackedBatch, model_or_config: Any) -> Arguments:
    """Return the arguments of a transformers model with ``attn_implementation="flex_attention"``."""
    from raypack.collate.masks.flex import block_mask

    segments = batch.segment_ids
    return _with_mask(
        batch, mask_by_layer(layer_windows(model_or_config), lambda window: block_mask(segments, window))
    )


def flex(batch: PackedBatch, window: int | None) -> Arguments:
    """Return what `torch.nn.attention.flex_attention.flex_attention` takes in addition to q, k and v."""
    from raypack.collate.masks.flex import block_mask

    return {"block_mask": block_mask(batch.segment_ids, _window(window))}


def torch_varlen(batch: PackedBatch, window: int | None) -> Arguments:
    """Return what `torch.nn.attention.varlen.varlen_attn` takes in addition to q, k and v.

    It has no causal flag: causal is a window without a right side.
    """
    offsets, longest = closed_offsets(batch)
    width = _window(window)
    return {
        "cu_seq_q": offsets,
        "cu_seq_k": offsets,
        "max_q": longest,
        "max_k": longest,
        "window_size": (-1 if width is None else width - 1, 0),
    }


def megatron(batch: PackedBatch) -> Arguments:
    """Return the arguments of Megatron-Core's ``PackedSeqParams``, without context parallelism."""
    offsets, longest = closed_offsets(batch)
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": offsets,
        "cu_seqlens_kv": offsets,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
    }


def closed_offsets(batch: PackedBatch) -> tuple[torch.Tensor, int]:
    """Return offsets that cover every token of a packed row, and the longest segment.

    Padding is one last segment. Under ``pad_documents_to`` there is a slot for it beside those of the
    documents, and what is not used repeats the last offset, so that the length never changes.

    Raises:
        BatchError: the batch is padded; its rows are not one after another.
    """
    if batch.layout != PACKED:
        raise BatchError(f"layout must be 'packed' for offsets, got {batch.layout!r}; pack the documents")
    padding, slots = batch.num_padding, batch.document_slots
    if not padding and slots is None:
        return batch.cu_seqlens, batch.max_seqlen
    more = 1 if slots is None else slots + 1 - batch.num_documents
    ends = batch.cu_seqlens.new_full((more,), batch.input_ids.shape[1])
    return torch.cat([batch.document_offsets, ends]), max(batch.max_seqlen, padding)


def closed_segments(batch: PackedBatch) -> torch.Tensor:
    """Return (1, T) int32 segment ids from 1 in which padding is one last segment."""
    segments = batch.segment_ids.clone()
    segments[:, batch.num_tokens :] = batch.num_documents + 1
    return segments


def _ids_alone(batch: PackedBatch) -> Arguments | None:
    """Return the ids, where each row is one document with padding after it: nothing else is needed."""
    if batch.layout == PACKED or batch.padding_side != "right" or batch.position_offset:
        return None
    return {"input_ids": batch.input_ids, "use_cache": False}


def _positions(batch: PackedBatch) -> Arguments:
    return {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}


def _with_mask(batch: PackedBatch, mask: Any) -> Arguments:
    return {**_positions(batch), "attention_mask": mask}


def _window(window: int | None) -> int | None:
    return optional_integer("window", window, minimum=1, error=BatchError)
