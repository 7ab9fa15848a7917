"""The packed batch: tokens on a device, and the boundaries of its documents."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from raypack.collate.attention import exporters
from raypack.collate.layout.assemble import fields_of
from raypack.collate.layout.batch_shape import PACKED, BatchShape
from raypack.collate.layout.flat import Document, Tokens, parse_documents, parse_flat

if TYPE_CHECKING:
    from raypack.batching import TokenBatchPlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """Documents of one micro-batch on a device.

    Packed is one row of T tokens, padding last: shape (1, T). Padded is one document a row: shape
    (B, S). An empty plan is a legal batch too: padding alone, nothing supervised.
    """

    input_ids: torch.Tensor
    """(1, T) or (B, S) int64 token ids; the pad id on padding."""
    labels: torch.Tensor
    """As `input_ids`, aligned with them: -100 on padding and on each document's first token. The
    loss shifts them, so no document is trained to predict the next one's start."""
    position_ids: torch.Tensor
    """As `input_ids`: the token's position in its document; on padding that of a first token."""
    segment_ids: torch.Tensor
    """(1, T) or (B, S) int32: the row's document, from 1; 0 is padding."""
    cu_seqlens: torch.Tensor
    """(documents + 1,) int32: where each real document starts among the real tokens, and their number;
    (``pad_documents_to`` + 1,) with the number repeated where that is given."""
    max_seqlen: int
    """The longest document's tokens; 0 where there is none."""
    indices: torch.Tensor
    """(documents,) int64 on the host: the source index of each document, in the order of the batch."""
    plan: TokenBatchPlan | None
    """The plan this batch was made from, if any."""
    layout: str
    """``"packed"`` or ``"padded"``."""
    padding_side: str
    """``"right"``, or ``"left"`` of a padded batch."""
    position_offset: int
    """The position of each document's first token."""
    document_slots: int | None
    """Documents that `cu_seqlens` is padded to (``pad_documents_to``); None: it is not padded."""
    num_documents: int
    """Real documents."""
    num_tokens: int
    """Real tokens."""
    num_supervised: int | None
    """Labels that train something; None where they came as a tensor on a device and were not counted."""

    @property
    def document_offsets(self) -> torch.Tensor:
        """`cu_seqlens` without repeats: (documents + 1,) int32."""
        return self.cu_seqlens[: self.num_documents + 1]

    @property
    def num_padding(self) -> int:
        """Token slots that hold padding."""
        return self.input_ids.numel() - self.num_tokens

    @property
    def device(self) -> torch.device:
        """The tensors' device; `indices` is always on the host."""
        return self.input_ids.device

    def for_hf_sdpa(self, model_or_config: Any = None, *, kind: str = "causal") -> dict[str, Any]:
        """Return what a transformers model with ``attn_implementation="sdpa"`` is called with.

        Sliding windows stay as the model has them.

        Args:
            model_or_config: the model or its config; needed where layers are recurrent (linear
                attention, Mamba), which then get what `for_linear_attention` gives.
            kind: ``"causal"``, or ``"bidirectional"`` for a model whose config says so.
        """
        return exporters.hf_sdpa(self, model_or_config, kind)

    def for_hf_eager(
        self, dtype: torch.dtype, model_or_config: Any = None, *, kind: str = "causal"
    ) -> dict[str, Any]:
        """Return what a transformers model with ``attn_implementation="eager"`` is called with.

        Args:
            dtype: the float dtype that attention computes in; the mask is made in it.
            model_or_config: the model or its config; needed where layers have sliding windows, which
                get masks of their own. None: no layer has one.
            kind: ``"causal"``, or ``"bidirectional"`` for a model whose config says so.
        """
        return exporters.hf_eager(self, dtype, model_or_config, kind)

    def for_hf_flash(self) -> dict[str, Any]:
        """Return what a transformers model with a flash attention implementation is called with."""
        return exporters.hf_flash(self)

    def for_linear_attention(self) -> dict[str, Any]:
        """Return what recurrent layers of a transformers model need in addition: ``seq_idx`` and offsets.

        ``seq_idx`` is what the kernels of mamba_ssm and causal_conv1d take, ``cu_seq_lens_q`` the
        ``cu_seqlens`` of those of flash-linear-attention. Included in `for_hf_flash`.

        Raises:
            BatchError: padding lies before the documents.
        """
        return exporters.linear_attention(self)

    def for_hf_loss(self, num_items: float | torch.Tensor | None = None) -> dict[str, Any]:
        """Return ``labels`` and ``num_items_in_batch``, for a transformers model that computes its loss.

        Pass it with the other arguments: ``model(**batch.for_hf_sdpa(), **batch.for_hf_loss()).loss``.
        An empty batch gives 0, never NaN.

        Args:
            num_items: what the summed loss is divided by, such as the supervised tokens of all of a
                step's batches; None: this batch's own. 0 counts as 1.
        """
        return exporters.hf_loss(self, num_items)

    def for_trl(self) -> dict[str, Any]:
        """Return what TRL's padding-free collator gives, ``labels`` included, under TRL's names.

        Raises:
            BatchError: the batch is not packed.
        """
        return exporters.trl(self)

    def for_hf_flex(self, model_or_config: Any = None) -> dict[str, Any]:
        """Return what a transformers model with ``attn_implementation="flex_attention"`` is called with.

        Args:
            model_or_config: the model or its config; needed where layers have sliding windows.
        """
        return exporters.hf_flex(self, model_or_config)

    def for_flex(self, *, window: int | None = None) -> dict[str, Any]:
        """Return the ``block_mask`` of torch's ``flex_attention``.

        Args:
            window: keys a query sees, itself included; None: all of its document up to itself.
        """
        return exporters.flex(self, window)

    def for_torch_varlen(self, *, window: int | None = None) -> dict[str, Any]:
        """Return what torch's ``varlen_attn`` takes in addition to q, k and v; causal.

        Args:
            window: keys a query sees, itself included; None: all of its document up to itself.

        Raises:
            BatchError: the batch is not packed.
        """
        return exporters.torch_varlen(self, window)

    def for_megatron(self) -> dict[str, Any]:
        """Return the arguments of Megatron-Core's ``PackedSeqParams``, without context parallelism.

        Raises:
            BatchError: the batch is not packed.
        """
        return exporters.megatron(self)

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[Document],
        labels: Sequence[Document] | None = None,
        *,
        indices: Tokens | None = None,
        plan: TokenBatchPlan | None = None,
        layout: str | enum.Enum = PACKED,
        pad_to_multiple: int | None = None,
        pad_to: int | None = None,
        pad_documents_to: int | None = None,
        pad_id: int = 0,
        padding_side: str = "right",
        position_offset: int = 0,
        device: torch.device | str | None = None,
    ) -> PackedBatch:
        """Make a batch from token lists, arrays or tensors.

        Args:
            documents: one non-empty sequence of token ids a document; none gives a batch of padding.
            labels: of the documents' lengths, -100 where nothing is to be learnt; None: the ids.
            indices: see `from_flat`, as is all that follows.
            plan: the plan that these documents answer.
            layout: ``"packed"`` or ``"padded"``.
            pad_to_multiple: round T or S up.
            pad_to: T or S itself.
            pad_documents_to: document slots of ``cu_seqlens``, or rows.
            pad_id: the token id on padding.
            padding_side: ``"right"``, or ``"left"`` under the padded layout.
            position_offset: position of a document's first token.
            device: where the batch is built.

        Raises:
            TypeError: something has the wrong type.
            BatchError: documents, labels and sizes do not fit together.
        """
        shape = BatchShape.parse(
            layout=layout,
            pad_to_multiple=pad_to_multiple,
            pad_to=pad_to,
            pad_documents_to=pad_documents_to,
            pad_id=pad_id,
            padding_side=padding_side,
            position_offset=position_offset,
        )
        return cls(**fields_of(parse_documents(documents, labels), shape, indices, plan, device))

    @classmethod
    def from_flat(
        cls,
        input_ids: Tokens,
        lengths: Tokens,
        *,
        labels: Tokens | None = None,
        indices: Tokens | None = None,
        plan: TokenBatchPlan | None = None,
        layout: str | enum.Enum = PACKED,
        pad_to_multiple: int | None = None,
        pad_to: int | None = None,
        pad_documents_to: int | None = None,
        pad_id: int = 0,
        padding_side: str = "right",
        position_offset: int = 0,
        device: torch.device | str | None = None,
    ) -> PackedBatch:
        """Make a batch from flat tokens, without a loop over documents and without waiting for a device.

        The arguments are only read: views of Arrow buffers may be passed as they are. Ids and labels
        travel to the device as int32.

        Args:
            input_ids: (total,) integers, all documents' tokens one after another.
            lengths: (documents,) integers on the host, each at least 1.
            labels: (total,) integers, -100 where nothing is to be learnt; None: the ids themselves.
            indices: (documents,) source indices; None: the plan's, or 0, 1, 2, … without a plan.
            plan: the plan that these documents answer; its counts must agree.
            layout: ``"packed"`` or ``"padded"`` (a string, or a `TokenBatchLayout`).
            pad_to_multiple: round T or S up to a multiple of this many tokens.
            pad_to: T or S itself, for static shapes; too small is an error.
            pad_documents_to: document slots, for static shapes too: ``cu_seqlens`` repeats its last
                offset (documents without tokens), padded batches have rows of padding; too few is an
                error.
            pad_id: the token id on padding.
            padding_side: ``"right"``, or ``"left"`` under the padded layout.
            position_offset: position of a document's first token, and of padding.
            device: where the batch is built; None: torch's default device.

        Raises:
            TypeError: something has the wrong type.
            BatchError: tokens, lengths, labels, plan and sizes do not fit together.
        """
        shape = BatchShape.parse(
            layout=layout,
            pad_to_multiple=pad_to_multiple,
            pad_to=pad_to,
            pad_documents_to=pad_documents_to,
            pad_id=pad_id,
            padding_side=padding_side,
            position_offset=position_offset,
        )
        return cls(**fields_of(parse_flat(input_ids, lengths, labels), shape, indices, plan, device))
