"""What a batch is made to be: its layout, its sizes, its indices, checked at the door."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from raypack.arguments import choice, integer, optional_integer
from raypack.choices import INT32_MAX
from raypack.collate.layout.flat import FlatDocuments, Tokens
from raypack.errors import BatchError

if TYPE_CHECKING:
    from raypack.batching import TokenBatchPlan

PACKED, PADDED = "packed", "padded"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """The form that documents are brought into; see `PackedBatch.from_flat` for each field."""

    layout: str
    pad_to_multiple: int | None
    pad_to: int | None
    pad_documents_to: int | None
    pad_id: int
    padding_side: str
    position_offset: int

    @classmethod
    def parse(
        cls,
        *,
        layout: str | enum.Enum = "packed",
        pad_to_multiple: int | None = None,
        pad_to: int | None = None,
        pad_documents_to: int | None = None,
        pad_id: int = 0,
        padding_side: str = "right",
        position_offset: int = 0,
    ) -> BatchShape:
        """Check what does not depend on the documents.

        Raises:
            TypeError: something has the wrong type.
            BatchError: sizes or sides do not fit together.
        """
        kind = layout_of(layout)
        step = optional_integer("pad_to_multiple", pad_to_multiple, minimum=1, error=BatchError)
        size = optional_integer("pad_to", pad_to, minimum=1, maximum=INT32_MAX, error=BatchError)
        if size is not None and size % (step or 1):
            raise BatchError(f"pad_to must be a multiple of pad_to_multiple={step}, got {size}")
        return cls(
            layout=kind,
            pad_to_multiple=step,
            pad_to=size,
            pad_documents_to=optional_integer(
                "pad_documents_to", pad_documents_to, minimum=1, maximum=INT32_MAX, error=BatchError
            ),
            pad_id=integer("pad_id", pad_id, minimum=0, maximum=INT32_MAX, error=BatchError),
            padding_side=padding_side_of(padding_side, kind),
            position_offset=integer(
                "position_offset", position_offset, minimum=0, maximum=INT32_MAX, error=BatchError
            ),
        )

    def tokens(self, flat: FlatDocuments) -> int:
        """Return the tokens of a row: at least one, a multiple, or exactly the fixed size.

        Raises:
            BatchError: the fixed size is too small.
        """
        needed = flat.total if self.layout == PACKED else flat.max_seqlen
        if self.pad_to is None:
            step = self.pad_to_multiple or 1
            return -(-max(needed, 1) // step) * step
        if self.pad_to < needed:
            raise BatchError(
                f"pad_to must hold the {needed} tokens of this batch, got {self.pad_to}; raise it"
            )
        return self.pad_to

    def offsets(self, flat: FlatDocuments) -> npt.NDArray[np.int32]:
        """Return (slots + 1,) offsets; slots that no document fills repeat the last one.

        Raises:
            BatchError: more documents than slots.
        """
        slots = self.pad_documents_to
        if slots is None:
            return flat.offsets
        if slots < flat.documents:
            raise BatchError(
                f"pad_documents_to must hold the {flat.documents} documents of this batch, got {slots}; "
                "raise it, or let a batch have fewer examples"
            )
        offsets = np.full(slots + 1, flat.total, dtype=np.int32)
        offsets[: flat.documents] = flat.offsets[:-1]
        return offsets


def layout_of(layout: str | enum.Enum) -> str:
    """Return ``"packed"`` or ``"padded"``, from a string or an enum with such a value."""
    value = layout.value if isinstance(layout, enum.Enum) else layout
    return choice("layout", value, (PACKED, PADDED), error=BatchError)


def padding_side_of(side: str, layout: str) -> str:
    """Return ``"right"`` or ``"left"``; a packed row is padded at its end only."""
    side = choice("padding_side", side, ("right", "left"), error=BatchError)
    if side == "left" and layout == PACKED:
        raise BatchError(
            "padding_side must be 'right' under the packed layout, got 'left'; use layout='padded'"
        )
    return side


def indices_of(flat: FlatDocuments, indices: Tokens | None, plan: TokenBatchPlan | None) -> torch.Tensor:
    """Return the documents' source indices as int64 on the host, checked against the plan."""
    if plan is not None:
        _check_plan(flat, plan)
    if indices is None:
        indices = np.arange(flat.documents) if plan is None else np.asarray(plan.indices, dtype=np.int64)
    array: npt.NDArray[Any] = (
        indices.cpu().numpy() if isinstance(indices, torch.Tensor) else np.asarray(indices)
    )
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"indices must hold integers, got {array.dtype}")
    if array.shape != (flat.documents,):
        raise BatchError(f"indices must have one entry a document: {flat.documents}, got shape {array.shape}")
    return torch.from_numpy(array.astype(np.int64))


def _check_plan(flat: FlatDocuments, plan: TokenBatchPlan) -> None:
    if len(plan.indices) != flat.documents or plan.real_tokens != flat.total:
        raise BatchError(
            f"documents must be the plan's: {len(plan.indices)} of {plan.real_tokens} tokens in all, "
            f"got {flat.documents} of {flat.total}; was the source changed?"
        )
