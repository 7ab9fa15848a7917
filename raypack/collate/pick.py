"""Which attention implementation keeps packed documents apart fastest here, and why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from raypack.collate.batch import PackedBatch
from raypack.collate.windows import FULL, SLIDING, config_of

MAXIMUM_HEAD_DIM = 256
HALF = (torch.float16, torch.bfloat16)
NO_POSITIONS = ("biogpt", "opt")
"""Model types whose SDPA mask is made without the positions, which are all that it is told of documents
(seen in transformers 5.24: packed documents see each other there)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionEvidence:
    """What the choice rests on."""

    device_type: str
    """``"cuda"``, ``"cpu"``, …"""
    capability: tuple[int, int] | None
    """The CUDA device's compute capability; None elsewhere."""
    dtype: torch.dtype | None
    """The dtype attention computes in; None where it is not known."""
    head_dim: int | None
    """Width of a head; None where the config does not say."""
    flash_attn: bool
    """Whether the package flash_attn is installed."""
    causal: bool
    """Whether the model is causal."""
    softcap: bool
    """Whether attention scores are capped."""
    dropout: bool
    """Whether attention has dropout."""
    layer_types: tuple[str, ...]
    """The kinds of attention layers, by transformers' names."""
    unsupported: tuple[str, ...]
    """Implementations that the model's class says it lacks."""
    model_type: str
    """The architecture, by transformers' name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionChoice:
    """An implementation, the exporter that goes with it, and why no faster one was taken."""

    implementation: str
    """What transformers is given as ``attn_implementation``."""
    exporter: str
    """The method of `PackedBatch` that makes the model's arguments."""
    reasons: tuple[str, ...]
    """One line for each implementation looked at, the chosen one last."""
    evidence: AttentionEvidence
    """What the choice rests on."""

    def export(self, batch: PackedBatch, model: Any) -> dict[str, Any]:
        """Return what the model is called with for a batch."""
        kind = "causal" if self.evidence.causal else "bidirectional"
        if self.exporter == "for_hf_eager":
            return batch.for_hf_eager(self.evidence.dtype or model.dtype, model, kind=kind)
        if self.exporter == "for_hf_flex":
            return batch.for_hf_flex(model)
        return (
            batch.for_hf_flash() if self.exporter == "for_hf_flash" else batch.for_hf_sdpa(model, kind=kind)
        )


def pick_attention(
    model_or_config: Any,
    device: torch.device | str | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> AttentionChoice:
    """Choose an attention implementation for packed batches of a transformers model.

    The order is flash attention, flex attention, SDPA, eager: what needs no S×S mask first.
    `assert_isolated` proves the choice on the model itself.

    Args:
        model_or_config: a transformers model or its config.
        device: where it runs; None: the model's device, or torch's default one.
        dtype: what attention computes in, under autocast say; None: the model's or the config's.

    Raises:
        ValueError: no implementation keeps documents apart; the message says why for each.
    """
    evidence = gather_evidence(model_or_config, device, dtype)
    reasons: list[str] = []
    for implementation, exporter, obstacle in _CANDIDATES:
        found = obstacle(evidence)
        if implementation in evidence.unsupported:
            found = "the model's class does not support it"
        if found is None:
            return AttentionChoice(
                implementation=implementation,
                exporter=exporter,
                reasons=(*reasons, f"{implementation}: nothing speaks against it"),
                evidence=evidence,
            )
        reasons.append(f"{implementation}: {found}")
    raise ValueError(f"no attention implementation keeps documents apart: {'; '.join(reasons)}")


def gather_evidence(
    model_or_config: Any, device: torch.device | str | None, dtype: torch.dtype | None
) -> AttentionEvidence:
    """Look at the model, its config, the device and what is installed."""
    config = config_of(model_or_config)
    if device is None:
        device = getattr(model_or_config, "device", None) or torch.get_default_device()
    where = torch.device(device)
    computed = dtype or getattr(model_or_config, "dtype", None) or getattr(config, "dtype", None)
    return AttentionEvidence(
        device_type=where.type,
        capability=torch.cuda.get_device_capability(where) if where.type == "cuda" else None,
        dtype=computed if isinstance(computed, torch.dtype) else None,
        head_dim=_head_dim(config),
        flash_attn=importlib.util.find_spec("flash_attn") is not None,
        causal=bool(getattr(config, "is_causal", True)),
        softcap=getattr(config, "attn_logit_softcapping", None) is not None,
        dropout=bool(getattr(config, "attention_dropout", 0.0)),
        layer_types=tuple(dict.fromkeys(getattr(config, "layer_types", None) or (FULL,))),
        unsupported=_unsupported(model_or_config),
        model_type=str(getattr(config, "model_type", "")),
    )


def _head_dim(config: Any) -> int | None:
    told = getattr(config, "head_dim", None)
    if told is not None:
        return int(told)
    width, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    return width // heads if width and heads else None


def _unsupported(model: Any) -> tuple[str, ...]:
    """Read a model class's own flags; a config says nothing."""
    flags = {
        "flash_attention_2": "_supports_flash_attn",
        "flex_attention": "_supports_flex_attn",
        "sdpa": "_supports_sdpa",
    }
    return tuple(name for name, flag in flags.items() if getattr(model, flag, True) is False)


def _flash_obstacle(evidence: AttentionEvidence) -> str | None:
    if evidence.device_type != "cuda":
        return f"needs CUDA, the device is {evidence.device_type}"
    if evidence.capability is not None and evidence.capability < (8, 0):
        return (
            f"needs compute capability 8.0, the device has {evidence.capability[0]}.{evidence.capability[1]}"
        )
    if evidence.dtype not in HALF:
        return f"needs float16 or bfloat16, attention computes in {evidence.dtype or 'an unknown dtype'}"
    if evidence.head_dim is None or evidence.head_dim > MAXIMUM_HEAD_DIM:
        return f"needs heads of at most {MAXIMUM_HEAD_DIM}, the config says {evidence.head_dim}"
    if "chunked_attention" in evidence.layer_types:
        return "knows no chunked layers"
    return None if evidence.flash_attn else "flash_attn is not installed"


def _flex_obstacle(evidence: AttentionEvidence) -> str | None:
    if evidence.device_type != "cuda":
        return f"trains on CUDA only, the device is {evidence.device_type}"
    if not evidence.causal:
        return "its block masks are causal here, the model is not"
    if evidence.dropout:
        return "has no attention dropout, the config asks for some"
    return _unknown_layers(evidence)


def _sdpa_obstacle(evidence: AttentionEvidence) -> str | None:
    if evidence.model_type in NO_POSITIONS:
        return f"{evidence.model_type} makes its mask without positions, so that documents see each other"
    return "cannot cap attention scores, the config asks for it" if evidence.softcap else None


def _eager_obstacle(evidence: AttentionEvidence) -> str | None:
    return _unknown_layers(evidence)


def _unknown_layers(evidence: AttentionEvidence) -> str | None:
    unknown = [kind for kind in evidence.layer_types if kind not in (FULL, SLIDING)]
    return f"no mask is known here for layers of {', '.join(unknown)}" if unknown else None


_CANDIDATES: tuple[tuple[str, str, Callable[[AttentionEvidence], str | None]], ...] = (
    ("flash_attention_2", "for_hf_flash", _flash_obstacle),
    ("flex_attention", "for_hf_flex", _flex_obstacle),
    ("sdpa", "for_hf_sdpa", _sdpa_obstacle),
    ("eager", "for_hf_eager", _eager_obstacle),
)
