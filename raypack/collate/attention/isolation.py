"""Tests on the user's own model that packed documents do not attend to one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from raypack.arguments import type_name
from raypack.collate.attention.calling import Caller, Export, caller_of, hf_export, in_eval_mode
from raypack.collate.attention.probing import (
    MAXIMUM_PROBES,
    document_ids,
    leaks,
    moved_by_others,
    moved_by_own,
    noise_of,
    split,
    token_differences,
)
from raypack.collate.attention.rounding import rounded_at_random, rounding_unit
from raypack.collate.batch import PackedBatch
from raypack.errors import BatchError, IsolationError

__all__ = ["assert_isolated", "hf_export"]

NOISE_FACTOR = 3
"""How many times its measured noise a document's logits may move when others change."""
ROUNDING_FACTOR = {torch.float64: 16.0, torch.float32: 16.0, torch.float16: 1.5, torch.bfloat16: 1.5}
"""How many times the measured rounding the packed logits may differ from the unpacked ones. Products of
float32 are summed in float32 too, which rounding the modules' outputs does not show; those of float16
and bfloat16 are not."""
UNMEASURED = {torch.float64: 64.0, torch.float32: 64.0, torch.float16: 4.0, torch.bfloat16: 4.0}
"""Units in the last place allowed where no rounding can be measured, because the model is not a module."""
MEASURED_DOCUMENTS = 8
"""Documents that rounding is measured on, the longest first."""


def assert_isolated(
    model: Callable[..., Any],
    batch: PackedBatch,
    *,
    export: Export | None = None,
    tolerance: float | None = None,
) -> float:
    """Prove that a batch's documents do not see one another, and have the logits that they have alone.

    First, other documents' tokens are changed at equal shapes: the same kernels give a document that sees
    none of them the same logits, to the bit. Where they do move, they are measured against the model's own
    noise, in rows that cannot see each other. Then each document is run alone; its packed logits may differ
    by this model's own rounding, measured by rounding at random. A module is in eval mode meanwhile.

    It takes about 4 log2 N passes for N documents in the batch, and one or two a document.

    Args:
        model: a transformers model; or, with ``export``, any callable of keyword arguments; or a
            callable that takes a `PackedBatch`. It returns logits (rows, tokens, V), or something
            with ``logits``. Of a module the rounding is measured; of a mere callable it is supposed.
        batch: at least one document; two show a leak, and longer ones than a window show its loss.
        export: what the model is called with for a batch, ``PackedBatch.for_hf_flash`` say. None: a
            transformers model's exporter by its attention implementation.
        tolerance: difference, as a part of the largest logit, that counts as none, in place of what the
            measured noise and rounding allow.

    Returns:
        The largest difference from the logits alone, as a part of the largest logit.

    Raises:
        IsolationError: documents leak, or logits differ; the message names the documents, from 0. Or
            the test is inconclusive: the noise hides a leak, or no logit depends on an earlier token.
        BatchError: the batch has no document, or the logits are no (rows, tokens, V).
        TypeError: the model is neither, or ``batch`` or ``export`` is of a wrong type.
    """
    if not isinstance(batch, PackedBatch):
        raise TypeError(
            f"batch must be a PackedBatch, got {type_name(batch)}: give the batch itself, it is exported here"
        )
    if isinstance(getattr(export, "__self__", None), PackedBatch):
        raise TypeError(
            "export must take a batch, got a method of one batch: give PackedBatch.for_hf_flash, say, "
            "not batch.for_hf_flash"
        )
    if batch.num_documents == 0:
        raise BatchError("batch must hold a document, got an empty plan")
    caller = caller_of(model, export, batch.position_offset)
    with torch.no_grad(), in_eval_mode(caller.module):
        apart = torch.cat([caller.alone(ids) for ids in document_ids(batch)])
        found = _Comparison.of(caller.together(batch), apart, batch, tolerance)
        found.check_finite()
        noise = _check_leaks(caller, found)
        _check_alone(caller, found, noise)
    return found.largest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """Packed logits and those alone, (tokens, V) both."""

    packed: torch.Tensor
    apart: torch.Tensor
    batch: PackedBatch
    scale: float
    """Magnitude of a typical logit; differences are given relative to it."""
    differs: list[float]
    """Each document's largest difference as a part of the scale: of a token's logits the root mean square,
    or under a tolerance of the caller's the largest."""
    largest: float
    """The largest difference as a part of the largest logit."""
    tolerance: float | None
    """The caller's own, as a part of the scale."""

    @classmethod
    def of(
        cls, packed: torch.Tensor, apart: torch.Tensor, batch: PackedBatch, tolerance: float | None
    ) -> _Comparison:
        finite = apart[apart.isfinite()].double().abs()
        top = float(finite.max()) if len(finite) else 0.0
        # The median, so that one column with a huge constant does not hide the others.
        scale = float(finite.median()) / 0.6745 if top else 1.0
        scale = scale or float(finite.square().mean().sqrt())
        gaps = torch.where(packed == apart, 0.0, (packed.double() - apart.double()).abs())
        gaps = gaps.nan_to_num(nan=torch.inf, posinf=torch.inf).amax(dim=1)
        by_token = (token_differences(packed, apart) if tolerance is None else gaps) / scale
        return cls(
            packed=packed,
            apart=apart,
            batch=batch,
            scale=scale,
            differs=[float(part.max()) for part in split(by_token, batch)],
            largest=float(gaps.max()) / (top or 1.0),
            tolerance=None if tolerance is None else tolerance * (top or 1.0) / scale,
        )

    def check_finite(self) -> None:
        worst = max(range(len(self.differs)), key=self.differs.__getitem__)
        if self.differs[worst] == torch.inf:
            raise IsolationError(
                f"{self.name(worst)} must have the logits that it has alone: they differ by inf, for some "
                "are not finite; a minimum that was cast, or a row that sees nothing"
            )

    def name(self, number: int) -> str:
        start, stop = self.batch.document_offsets[number : number + 2].tolist()
        return f"document {number} (real tokens {start} to {stop - 1})"


def _check_leaks(caller: Caller, found: _Comparison) -> float:
    """Change other documents' tokens, and return the noise that was found."""
    batch, packed = found.batch, found.packed
    moved = [part / found.scale for part in moved_by_others(caller.together, batch, packed)]
    worst = max(range(len(moved)), key=lambda number: float(moved[number].max()))
    distance = float(moved[worst].max())
    own = moved_by_own(caller.together, batch, packed)
    own = None if own is None else own / found.scale
    noise = noise_of(caller, batch, packed, moved) / found.scale if distance else 0.0
    allowed = _allowed_movement(caller, found, noise)
    if distance > allowed:
        pairs = tuple(leaks(caller.together, batch, packed, allowed * found.scale))
        raise IsolationError(_leak_message(found.name(worst), distance, noise, pairs, batch), pairs)
    if own == 0:
        raise IsolationError(
            "the proof must have something to see, but no logit depends on an earlier token of its own "
            "document: weights of zero, or a model without attention; give it weights that matter"
        )
    if own is not None and found.tolerance is None and allowed > own / 2:
        raise IsolationError(
            f"nothing can be told here: logits move by {noise:.2g} of a typical logit although no document "
            f"is seen (a model that is not deterministic, experts with a capacity, …), and by {own:.2g} "
            "when tokens that are seen change; prove it in float32, or give a tolerance"
        )
    return noise


def _allowed_movement(caller: Caller, found: _Comparison, noise: float) -> float:
    """Return how far logits may move when others' tokens change: not at all, but for what is measured.

    Where rows that cannot see each other move too, kernels depend on the load, of experts say; then
    documents may move by their rounding. A difference that float32 can hardly hold is none.
    """
    if found.tolerance is not None:
        return found.tolerance
    allowed = NOISE_FACTOR * noise
    if found.packed.dtype in (torch.float32, torch.float64):
        return max(allowed, ROUNDING_FACTOR[found.packed.dtype] * rounding_unit(found.packed.dtype))
    if not noise or caller.module is None:
        return allowed
    return max(allowed, _rounding(caller, caller.module, found))


def _check_alone(caller: Caller, found: _Comparison, noise: float) -> None:
    worst = max(range(len(found.differs)), key=found.differs.__getitem__)
    differs = found.differs[worst]
    dtype = found.packed.dtype
    if found.tolerance is not None:
        allowed = found.tolerance
    elif caller.module is None:
        allowed = max(NOISE_FACTOR * noise, UNMEASURED[dtype] * rounding_unit(dtype))
    else:
        allowed = max(NOISE_FACTOR * noise, rounding_unit(dtype))
        if differs > allowed:
            allowed = max(allowed, ROUNDING_FACTOR[dtype] * _rounding(caller, caller.module, found))
    if differs > allowed:
        raise IsolationError(
            f"{found.name(worst)} must have the logits that it has alone: they differ by {differs:.2g} of a "
            f"typical logit, the model's own rounding allows {allowed:.2g}. No document's tokens change "
            "another's logits, so it is no leak: positions that are not those of the document alone, a "
            "sliding window erased by a dense mask, or a mask of another kind than the model's own"
        )


def _rounding(caller: Caller, module: torch.nn.Module, found: _Comparison) -> float:
    """Return how far rounding at random moves documents alone, as a part of a typical logit."""
    documents, apart = document_ids(found.batch), split(found.apart, found.batch)
    longest = sorted(range(len(documents)), key=lambda number: len(documents[number]), reverse=True)
    worst = 0.0
    for seed, number in enumerate(longest[:MEASURED_DOCUMENTS]):
        with rounded_at_random(module, found.batch.device, seed):
            moved = caller.alone(documents[number])
        worst = max(worst, float(token_differences(moved, apart[number]).max()))
    return worst / found.scale


def _leak_message(
    name: str, distance: float, noise: float, pairs: tuple[tuple[int | None, int], ...], batch: PackedBatch
) -> str:
    found = (
        f"{name} must not depend on the other documents: when their tokens change, its logits move by "
        f"{distance:.2g} of a typical logit, the model's own noise is {noise:.2g}"
    )
    if not pairs:
        tried = f"the first {MAXIMUM_PROBES}" if batch.num_documents > MAXIMUM_PROBES else "any"
        return f"{found}. No change of one document alone shows it, of {tried}"
    told = ", ".join(f"{'padding' if a is None else f'document {a}'} into document {b}" for a, b in pairs[:8])
    more = f" and {len(pairs) - 8} more" if len(pairs) > 8 else ""
    return f"{found}. Leaks: {told}{more}; call the model with the exporter of its attention backend"
