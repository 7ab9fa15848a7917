"""Which attention implementation keeps packed documents apart fastest here, and why."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from raypack.arguments import choice
from raypack.collate.architectures import (
    EAGER,
    ENCODERS,
    FLASH,
    FLEX,
    ISOLATES,
    ONE_A_ROW,
    SDPA,
    TRANSFORMERS,
)
from raypack.collate.attention.layer_types import FULL, SLIDING, config_of
from raypack.collate.batch import PackedBatch
from raypack.collate.layout.batch_shape import PACKED, PADDED
from raypack.errors import BatchError

MAXIMUM_HEAD_DIM = 256
HALF = (torch.float16, torch.bfloat16)


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


_Obstacle = Callable[[AttentionEvidence], str | None]


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
    layout: str = PACKED
    """What the choice is for: ``"packed"`` rows too, or ``"padded"`` ones alone."""

    def export(self, batch: PackedBatch, model: Any) -> dict[str, Any]:
        """Return what the model is called with for a batch.

        Raises:
            BatchError: the choice is for rows of one document padded on the right, the batch is not.
        """
        if self.layout == PADDED and (batch.layout != PADDED or batch.padding_side != "right"):
            raise BatchError(
                "batch must have one document a row, padded on the right, as this attention was picked for; "
                f"got {batch.layout} rows padded on the {batch.padding_side}"
            )
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
    layout: str = PACKED,
) -> AttentionChoice:
    """Choose an attention implementation for batches of a transformers model.

    The order is flash attention, flex attention, SDPA, eager: what needs no S×S mask first. A model and
    its config get the same answer. Architectures are known by trial; one that has not been tried gets eager
    attention, whose mask separates documents, and a warning. `assert_isolated` proves the choice on the model
    itself.

    Args:
        model_or_config: a transformers model or its config.
        device: where it runs; None: the model's device, or torch's default one.
        dtype: what attention computes in, under autocast say; None: the model's or the config's.
        layout: ``"packed"``, or ``"padded"`` for rows of one document padded on the right, which any
            causal model keeps apart.

    Raises:
        ValueError: no implementation keeps documents apart; the message says why for each.
    """
    choice("layout", layout, (PACKED, PADDED))
    evidence = gather_evidence(model_or_config, device, dtype)
    remedy = "; give one document a row, padded on the right: layout='padded'" if layout == PACKED else ""
    if remedy and evidence.model_type in ONE_A_ROW:
        said = f"{evidence.model_type} {ONE_A_ROW[evidence.model_type]}"
        raise ValueError(f"no attention implementation keeps documents of a packed row apart: {said}{remedy}")
    reasons: list[str] = []
    for implementation, exporter, obstacle in _CANDIDATES:
        found = _first_obstacle(implementation, obstacle, evidence, layout)
        if found is None:
            said = _why_taken(implementation, evidence, layout)
            return AttentionChoice(
                implementation=implementation,
                exporter=exporter,
                reasons=(*reasons, f"{implementation}: {said}"),
                evidence=evidence,
                layout=layout,
            )
        reasons.append(f"{implementation}: {found}")
    raise ValueError(f"no attention implementation keeps documents apart: {'; '.join(reasons)}{remedy}")


def _first_obstacle(
    implementation: str, obstacle: _Obstacle, evidence: AttentionEvidence, layout: str
) -> str | None:
    """Return what speaks against an implementation: its class, the machine, or the architecture."""
    if implementation in evidence.unsupported:
        return "the model's class does not support it"
    alone = layout == PADDED and evidence.causal and implementation in (SDPA, EAGER)
    if alone and obstacle is _eager_obstacle:
        return None
    return obstacle(evidence) or (None if alone else _leak(implementation, evidence))


def _leak(implementation: str, evidence: AttentionEvidence) -> str | None:
    """Return why an implementation may let documents see each other, by what was tried."""
    model_type = evidence.model_type
    if model_type not in ISOLATES:
        return None if implementation == EAGER else f"{_named(model_type)} has not been tried"
    told = implementation
    if implementation == SDPA and not evidence.causal:
        told = EAGER  # it is given the same mask then, for both ways
    if told in ISOLATES[model_type]:
        return None
    if implementation == SDPA:
        return f"{model_type} makes its mask without positions, so that documents see each other"
    return f"{model_type} does not keep documents apart with it"


def _why_taken(implementation: str, evidence: AttentionEvidence, layout: str) -> str:
    """Say why an implementation is taken; warn where that is no more than a guess."""
    if layout == PADDED and evidence.causal:
        return "a row of one document padded on the right needs nothing"
    if evidence.model_type in ISOLATES:
        return "nothing speaks against it"
    said = (
        f"its mask tells documents, but {_named(evidence.model_type)} is not among the architectures tried "
        f"(with transformers {TRANSFORMERS}): prove it with raypack.assert_isolated(model, batch)"
    )
    warnings.warn(f"{implementation} attention is taken on trust: {said}", stacklevel=3)
    return said


def _named(model_type: str) -> str:
    return repr(model_type) if model_type else "an architecture without a model_type"


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
        causal=is_causal(config),
        softcap=getattr(config, "attn_logit_softcapping", None) is not None,
        dropout=bool(getattr(config, "attention_dropout", 0.0)),
        layer_types=tuple(dict.fromkeys(getattr(config, "layer_types", None) or (FULL,))),
        unsupported=_unsupported(_class_of(model_or_config)),
        model_type=str(getattr(config, "model_type", "")),
    )


def is_causal(model_or_config: Any) -> bool:
    """Whether a model looks back only, by its config."""
    config = config_of(model_or_config)
    if getattr(config, "model_type", None) in ENCODERS and not getattr(config, "is_decoder", False):
        return False
    return bool(getattr(config, "is_causal", True))


def _head_dim(config: Any) -> int | None:
    told = getattr(config, "head_dim", None)
    if told is not None:
        return int(told)
    width, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    return width // heads if width and heads else None


def _class_of(model_or_config: Any) -> Any:
    """Return the model, or the class that transformers makes of a config for causal language modelling."""
    transformers = sys.modules.get("transformers")
    if transformers is None or hasattr(model_or_config, "config"):
        return model_or_config
    config = config_of(model_or_config)
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), model_or_config)


def _unsupported(model: Any) -> tuple[str, ...]:
    """Read a model class's own flags."""
    flags = {FLASH: "_supports_flash_attn", FLEX: "_supports_flex_attn", SDPA: "_supports_sdpa"}
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
    return "cannot cap attention scores, the config asks for it" if evidence.softcap else None


def _eager_obstacle(evidence: AttentionEvidence) -> str | None:
    return _unknown_layers(evidence)


def _unknown_layers(evidence: AttentionEvidence) -> str | None:
    unknown = [kind for kind in evidence.layer_types if kind not in (FULL, SLIDING)]
    return f"no mask is known here for layers of {', '.join(unknown)}" if unknown else None


_CANDIDATES: tuple[tuple[str, str, _Obstacle], ...] = (
    (FLASH, "for_hf_flash", _flash_obstacle),
    (FLEX, "for_hf_flex", _flex_obstacle),
    (SDPA, "for_hf_sdpa", _sdpa_obstacle),
    (EAGER, "for_hf_eager", _eager_obstacle),
)
