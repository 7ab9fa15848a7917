"""The doctor: every way to pack for one architecture, tried on a tiny copy of it on this machine."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from raypack.audit.doctor.plain_layers import Attend, PlainLayer, flex_layer, varlen_layer, varlen_obstacle
from raypack.audit.doctor.tiny_model import load_config, tiny_model
from raypack.collate import AttentionChoice, IsolationError, PackedBatch, assert_isolated, pick_attention
from raypack.collate.attention.pick import is_causal
from raypack.errors import DoctorError

ISOLATED, LEAKS, DIFFERS, CANNOT_RUN = "isolated", "leaks", "differs", "cannot run"
LENGTHS = (5, 1, 11, 7)
"""Documents of the trial batch: shorter and longer than the copy's windows, and one of a single token."""
PADDING = 8
FLASH, VARLEN = "flash_attention_2", "torch varlen_attn"
_HALF_ONLY = (FLASH, VARLEN)

Export = Callable[[PackedBatch, Any], dict[str, Any]]
Make = Callable[[torch.dtype, torch.device], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One way to call the model, and what came of it."""

    method: str
    """The exporter, or what people do without one."""
    implementation: str
    """The model's ``attn_implementation``, or a kernel that is called by hand."""
    exporter: bool
    """Whether the way is raypack's own."""
    outcome: str
    """``"isolated"``, ``"leaks"``, ``"differs"`` (though nothing leaks) or ``"cannot run"``."""
    detail: str
    """The largest difference, what leaks where, or why it cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor found."""

    model: str
    """What was asked for."""
    model_type: str
    """The architecture, by transformers' name."""
    device: str
    """Where the copy ran."""
    choice: AttentionChoice | None
    """What `pick_attention` takes for the full model here; None where it takes nothing."""
    reasons: tuple[str, ...]
    """Why, one line an implementation."""
    trials: tuple[Trial, ...]
    """Every way that was tried, exporters first."""

    @property
    def picked(self) -> Trial | None:
        """The trial of what was picked."""
        if self.choice is None:
            return None
        return next(t for t in self.trials if t.exporter and t.implementation == self.choice.implementation)

    @property
    def proven(self) -> tuple[str, ...]:
        """The exporters for this model that kept documents apart here."""
        hf = {kind for _, kind, _ in _EXPORTERS}
        return tuple(
            t.method for t in self.trials if t.implementation in hf and t.exporter and t.outcome == ISOLATED
        )

    @property
    def ok(self) -> bool:
        """Whether what was picked has been proven to keep documents apart."""
        return self.picked is not None and self.picked.outcome == ISOLATED


_EXPORTERS: tuple[tuple[str, str, Export], ...] = (
    ("for_hf_flash", FLASH, lambda batch, model: batch.for_hf_flash()),
    ("for_hf_flex", "flex_attention", lambda batch, model: batch.for_hf_flex(model)),
    ("for_hf_sdpa", "sdpa", lambda batch, model: batch.for_hf_sdpa(model, kind=_kind(model))),
    (
        "for_hf_eager",
        "eager",
        lambda batch, model: batch.for_hf_eager(model.dtype, model, kind=_kind(model)),
    ),
)
_KERNELS: tuple[tuple[str, str, Attend, Export], ...] = (
    ("for_flex", "torch flex_attention", flex_layer, lambda batch, _: _with_ids(batch, batch.for_flex())),
    (
        "for_torch_varlen",
        VARLEN,
        varlen_layer,
        lambda batch, _: _with_ids(batch, batch.for_torch_varlen()),
    ),
)
_NAIVE: tuple[tuple[str, Export], ...] = (
    ("input_ids alone", lambda batch, model: {"input_ids": batch.input_ids}),
    (
        "position_ids alone",
        lambda batch, model: {"input_ids": batch.input_ids, "position_ids": batch.position_ids},
    ),
    (
        "position_ids and a 2-D padding mask",
        lambda batch, model: {
            "input_ids": batch.input_ids,
            "position_ids": batch.position_ids,
            "attention_mask": (batch.segment_ids != 0).long(),
        },
    ),
)


def diagnose(model: str, device: str | None = None) -> Diagnosis:
    """Try every way to pack for an architecture, on a tiny random copy of it; nothing is downloaded.

    Args:
        model: a folder with a ``config.json``, such a file, or a model type that transformers knows.
        device: where the copy runs; None: CUDA where there is some, else the CPU.

    Raises:
        DoctorError: transformers is missing, there is no such config or device, or no copy can be made.
    """
    where = _device(device)
    config = load_config(model)
    batch = _trial_batch(where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trials = [
            _try(name, kind, True, _copy(config, kind), method, batch) for name, kind, method in _EXPORTERS
        ]
        naive = _contrast(trials)
        trials += [
            _try(name, kind, True, _layer(kind, layer), method, batch)
            for name, kind, layer, method in _KERNELS
        ]
        trials += [_try(name, naive, False, _copy(config, naive), method, batch) for name, method in _NAIVE]
        choice, reasons = _pick(config, where)
    return Diagnosis(
        model=model,
        model_type=config.model_type,
        device=str(where),
        choice=choice,
        reasons=reasons,
        trials=tuple(trials),
    )


def _device(name: str | None) -> torch.device:
    try:
        where = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        raise DoctorError(f"device must be one of this machine, got {name!r}: {_first(error)}") from error
    return where


def _trial_batch(device: torch.device) -> PackedBatch:
    ids = torch.arange(3, 3 + sum(LENGTHS)).split(list(LENGTHS))
    return PackedBatch.from_documents(ids, pad_to=sum(LENGTHS) + PADDING, pad_id=1, device=device)


def _contrast(trials: list[Trial]) -> str:
    """Return the implementation that the naive ways are shown on: SDPA where the model has it."""
    runs = {trial.implementation for trial in trials if trial.outcome != CANNOT_RUN}
    return "sdpa" if "sdpa" in runs else "eager"


def _copy(config: Any, implementation: str) -> Make:
    return lambda dtype, device: tiny_model(config, implementation, dtype, device)


def _layer(implementation: str, attend: Attend) -> Make:
    return lambda dtype, device: PlainLayer(attend, device, dtype)


def _try(
    name: str, implementation: str, exporter: bool, make: Make, method: Export, batch: PackedBatch
) -> Trial:
    outcome, detail = _outcome(implementation, make, method, batch)
    return Trial(
        method=name, implementation=implementation, exporter=exporter, outcome=outcome, detail=detail
    )


def _outcome(implementation: str, make: Make, method: Export, batch: PackedBatch) -> tuple[str, str]:
    """Run one way; whatever stops it is what the doctor is there to tell."""
    obstacle = _obstacle(implementation, batch.device)
    if obstacle is not None:
        return CANNOT_RUN, obstacle
    try:
        model = make(torch.bfloat16 if implementation in _HALF_ONLY else torch.float32, batch.device)
        worst = assert_isolated(model, batch, export=lambda each: method(each, model))
    except IsolationError as error:
        return (LEAKS, _leaks(error)) if error.leaks else (DIFFERS, _first(error))
    except DoctorError:
        raise
    except Exception as error:
        return CANNOT_RUN, _first(error)
    return ISOLATED, f"largest difference {worst:.1e} of the largest logit"


def _obstacle(implementation: str, device: torch.device) -> str | None:
    """Return why an implementation cannot run here, checked before it is searched elsewhere."""
    if implementation == VARLEN:
        return varlen_obstacle(device)
    if implementation != FLASH:
        return None
    if device.type != "cuda":
        return f"flash attention needs CUDA, the device is {device.type}"
    return None if importlib.util.find_spec("flash_attn") else "flash_attn is not installed"


def _kind(model: Any) -> str:
    return "causal" if is_causal(model) else "bidirectional"


def _with_ids(batch: PackedBatch, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": batch.input_ids, **arguments}


def _pick(config: Any, device: torch.device) -> tuple[AttentionChoice | None, tuple[str, ...]]:
    """Choose for the full model, by its config."""
    try:
        choice = pick_attention(config, device)
    except ValueError as error:
        return None, (str(error),)
    return choice, choice.reasons


def _leaks(error: IsolationError) -> str:
    told = [f"{'padding' if a is None else a} into {b}" for a, b in error.leaks[:6]]
    more = len(error.leaks) - len(told)
    return f"document {', '.join(told)}" + (f" and {more} more" if more else "")


def _first(error: BaseException) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
