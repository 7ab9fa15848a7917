"""Runs a model on a batch and on single documents, for the isolation test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from raypack.arguments import type_name
from raypack.collate.batch import PackedBatch
from raypack.errors import BatchError

Export = Callable[[PackedBatch], dict[str, Any]]

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A model, and the ways to get a document's logits from it."""

    together: Callable[[PackedBatch], torch.Tensor]
    """The real tokens' logits of a batch, (tokens, V), document after document."""
    alone: Callable[[torch.Tensor], torch.Tensor]
    """The logits (tokens, V) of one document's (tokens,) ids."""
    rows: Callable[[torch.Tensor], torch.Tensor] | None
    """The logits (rows, tokens, V) of documents of one length, one a row; None where the model takes
    packed batches alone."""
    module: torch.nn.Module | None
    """The model, where it is a module."""


def caller_of(model: Callable[..., Any], export: Export | None, position_offset: int) -> Caller:
    """Return how a model is called.

    Raises:
        TypeError: the model is not callable, or its attention implementation has no exporter here.
    """
    if not callable(model):
        raise TypeError(f"model must be callable, got {type_name(model)}")
    module = model if isinstance(model, torch.nn.Module) else None
    if hasattr(getattr(model, "config", None), "_attn_implementation"):
        way = hf_export(model) if export is None else export

        def rows(ids: torch.Tensor) -> torch.Tensor:
            return _logits(model(**_plain(ids, position_offset)))

        return Caller(
            together=lambda batch: _real(_logits(model(**way(batch))), batch),
            alone=lambda ids: rows(ids[None])[0],
            rows=rows,
            module=module,
        )

    def run(batch: PackedBatch) -> torch.Tensor:
        return _real(_logits(model(batch) if export is None else model(**export(batch))), batch)

    def run_alone(ids: torch.Tensor) -> torch.Tensor:
        return run(PackedBatch.from_documents([ids], position_offset=position_offset, device=ids.device))

    return Caller(together=run, alone=run_alone, rows=None, module=module)


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


@contextmanager
def in_eval_mode(module: torch.nn.Module | None) -> Iterator[None]:
    """Switch dropout off, and leave the module as it was."""
    training = [] if module is None else [each for each in module.modules() if each.training]
    if module is not None and training:
        module.eval()
    try:
        yield
    finally:
        for each in training:
            each.training = True


def _plain(ids: torch.Tensor, position_offset: int) -> dict[str, Any]:
    """Return what a transformers model is called with for rows of one length: no more than it needs."""
    inputs = {"input_ids": ids, "use_cache": False}
    if position_offset:
        inputs["position_ids"] = torch.arange(ids.shape[1], device=ids.device)[None] + position_offset
    return inputs


def _logits(output: Any) -> torch.Tensor:
    logits = getattr(output, "logits", output)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 3 or logits.dtype not in DTYPES:
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
