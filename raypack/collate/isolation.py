"""Proof on the user's own model that packed documents do not see one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from raypack.arguments import type_name
from raypack.collate.batch import PackedBatch
from raypack.collate.errors import BatchError, IsolationError

Export = Callable[[PackedBatch], dict[str, Any]]

TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}
"""Allowed differences, as parts of the largest logit; a leak is of the order of 1."""
MAXIMUM_PROBES = 32
"""Documents changed at the most, one forward pass each, to find where a leak comes from."""


def assert_isolated(
    model: Callable[..., Any],
    batch: PackedBatch,
    *,
    export: Export | None = None,
    tolerance: float | None = None,
) -> float:
    """Compare a batch's logits with those of each of its documents alone.

    Takes one forward pass for the batch and one a document. Where they differ, one document's tokens
    after another are changed, to see whose logits follow. A module is in eval mode meanwhile.

    Args:
        model: a transformers model; or, with ``export``, any callable of keyword arguments; or a
            callable that takes a `PackedBatch`. It returns logits (rows, tokens, V), or something
            with ``logits``.
        batch: at least one document; two show a leak, and longer ones than a window show its loss.
        export: what the model is called with for a batch, ``PackedBatch.for_hf_flash`` say. None: a
            transformers model's exporter by its attention implementation.
        tolerance: allowed difference as a part of the largest logit; None: by the logits' dtype.

    Returns:
        The largest difference found, as a part of the largest logit.

    Raises:
        IsolationError: logits differ; the message names the documents, from 0.
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
    together, alone = _callers(model, export, batch.position_offset)
    with torch.no_grad(), _in_eval_mode(model):
        packed = _real(together(batch), batch)
        apart = torch.cat([alone(document) for document in _documents(batch)])
        allowed = TOLERANCES[packed.dtype] if tolerance is None else tolerance
        scale = float(apart.abs().max())
        differs = _by_document((packed - apart).abs() / scale, batch)
        worst = max(differs)
        if worst <= allowed:
            return worst
        leaks = list(_leaks(together, batch, packed, allowed * scale))
    raise IsolationError(_message(differs, leaks, allowed, batch), tuple(leaks))


def hf_export(model: Any) -> Export:
    """Return the exporter for a transformers model's attention implementation.

    Raises:
        TypeError: the implementation is not known here.
    """
    name = str(getattr(model.config, "_attn_implementation", None))
    if name == "sdpa":
        return lambda batch: batch.for_hf_sdpa(model)
    if name == "eager":
        return lambda batch: batch.for_hf_eager(model.dtype, model)
    if name == "flex_attention":
        return lambda batch: batch.for_hf_flex(model)
    if "flash" in name:
        return PackedBatch.for_hf_flash
    raise TypeError(f"export must be given for the attention implementation {name!r}")


def _callers(
    model: Callable[..., Any], export: Export | None, position_offset: int
) -> tuple[Callable[[PackedBatch], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """Return how a batch is run, and how a document's (tokens,) ids are run alone."""
    if not callable(model):
        raise TypeError(f"model must be callable, got {type_name(model)}")
    if hasattr(getattr(model, "config", None), "_attn_implementation"):
        way = hf_export(model) if export is None else export
        return (
            lambda batch: _logits(model(**way(batch))),
            lambda ids: _logits(model(**_alone(ids, position_offset)))[0],
        )

    def run(batch: PackedBatch) -> torch.Tensor:
        return _logits(model(batch) if export is None else model(**export(batch)))

    def run_alone(ids: torch.Tensor) -> torch.Tensor:
        return run(PackedBatch.from_documents([ids], position_offset=position_offset, device=ids.device))[0]

    return run, run_alone


def _alone(ids: torch.Tensor, position_offset: int) -> dict[str, Any]:
    """Return what a transformers model is called with for one document: no more than it needs."""
    inputs = {"input_ids": ids[None], "use_cache": False}
    if position_offset:
        inputs["position_ids"] = torch.arange(len(ids), device=ids.device)[None] + position_offset
    return inputs


def _logits(output: Any) -> torch.Tensor:
    logits = getattr(output, "logits", output)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 3 or logits.dtype not in TOLERANCES:
        shape = f" of {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else ""
        raise BatchError(f"logits must be a float tensor (rows, tokens, V), got {type_name(logits)}{shape}")
    return logits


def _real(logits: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """Pick the real tokens' logits: (tokens, V), document after document."""
    if logits.shape[:2] != batch.input_ids.shape:
        raise BatchError(
            f"logits must be of the batch's {tuple(batch.input_ids.shape)}, got {tuple(logits.shape)}"
        )
    return logits[batch.segment_ids != 0]


def _documents(batch: PackedBatch) -> tuple[torch.Tensor, ...]:
    lengths = batch.document_offsets.diff().tolist()
    return batch.input_ids[batch.segment_ids != 0].split(lengths)


def _by_document(differences: torch.Tensor, batch: PackedBatch) -> list[float]:
    """Return the largest difference in each document; what is not finite counts as infinite."""
    largest = differences.nan_to_num(nan=torch.inf, posinf=torch.inf).amax(dim=1).double()
    return [float(largest[start:stop].max()) for start, stop in pairwise(batch.document_offsets.tolist())]


def _leaks(
    run: Callable[[PackedBatch], torch.Tensor], batch: PackedBatch, packed: torch.Tensor, allowed: float
) -> Iterator[tuple[int | None, int]]:
    """Yield (from, to) for documents whose change changes another's logits; None stands for padding."""
    owners = batch.segment_ids.new_zeros(batch.segment_ids.shape)
    owners[batch.segment_ids != 0] = torch.repeat_interleave(batch.document_offsets.diff())
    owners[batch.segment_ids == 0] = -1
    sources = [*range(min(batch.num_documents, MAXIMUM_PROBES)), *([-1] if batch.num_padding else [])]
    for source in sources:
        ids = torch.where(owners == source, _other_ids(batch.input_ids), batch.input_ids)
        changed = _real(run(dataclasses.replace(batch, input_ids=ids)), batch)
        moved = _by_document((changed - packed).abs(), batch)
        for target, distance in enumerate(moved):
            if target != source and distance > allowed:
                yield (None if source < 0 else source), target


def _other_ids(ids: torch.Tensor) -> torch.Tensor:
    """Return ids that differ everywhere from the given ones, and that the model knows."""
    low, high = ids.min(), ids.max()
    high = torch.where(high == low, torch.where(low == 0, 1, low - 1), high)
    return torch.where(ids == low, high, low)


def _message(
    differs: list[float], leaks: list[tuple[int | None, int]], allowed: float, batch: PackedBatch
) -> str:
    worst = max(range(len(differs)), key=differs.__getitem__)
    offsets = batch.document_offsets.tolist()
    found = (
        f"document {worst} (real tokens {offsets[worst]} to {offsets[worst + 1] - 1}) must have the logits "
        f"that it has alone: they differ by {differs[worst]:.2g} of the largest logit, allowed {allowed:.2g}"
    )
    if leaks:
        told = ", ".join(
            f"{'padding' if a is None else f'document {a}'} into document {b}" for a, b in leaks[:8]
        )
        more = f" and {len(leaks) - 8} more" if len(leaks) > 8 else ""
        return f"{found}. Leaks: {told}{more}; call the model with the exporter of its attention backend"
    return (
        f"{found}. No document's tokens change another's logits, so it is no leak: positions that are not "
        "reset, a sliding window erased by a dense mask, or a model that is not deterministic"
    )


@contextmanager
def _in_eval_mode(model: Any) -> Iterator[None]:
    """Switch dropout off, and leave the module as it was."""
    if not isinstance(model, torch.nn.Module) or not model.training:
        yield
        return
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
