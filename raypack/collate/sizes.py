"""What a batch is made to be: its layout, its sizes, its indices, checked at the door."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from raypack.arguments import choice, optional_integer
from raypack.collate.errors import BatchError
from raypack.collate.flat import INT32_MAX, FlatDocuments, Tokens

if TYPE_CHECKING:
    from raypack.batching import TokenBatchPlan

PACKED, PADDED = "packed", "padded"


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


def padded_size(needed: int, multiple: int | None, fixed: int | None) -> int:
    """Return the tokens of a row: at least one, a multiple, or exactly the fixed size."""
    multiple = optional_integer("pad_to_multiple", multiple, minimum=1, error=BatchError)
    fixed = optional_integer("pad_to", fixed, minimum=1, maximum=INT32_MAX, error=BatchError)
    step = multiple or 1
    if fixed is None:
        return -(-max(needed, 1) // step) * step
    if fixed % step:
        raise BatchError(f"pad_to must be a multiple of pad_to_multiple={step}, got {fixed}")
    if fixed < needed:
        raise BatchError(f"pad_to must hold the {needed} tokens of this batch, got {fixed}; raise it")
    return fixed


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
