"""How far the layers of a transformers model see: read from its config, never guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raypack.arguments import shown
from raypack.errors import BatchError

FULL, SLIDING = "full_attention", "sliding_attention"
RECURRENT = ("linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba")
"""Kinds of layers that carry a state from token to token, which no mask and no position interrupts."""


def config_of(model_or_config: Any) -> Any:
    """Return the config of a model's text part, from a model or a config."""
    config = getattr(model_or_config, "config", model_or_config)
    pick = getattr(config, "get_text_config", None)
    return config if pick is None else pick()


def layer_windows(model_or_config: Any) -> dict[str, int | None]:
    """Return the window of each kind of layer: keys a query sees, itself included; None is all.

    Args:
        model_or_config: a transformers model or config; None stands for a model without windows.

    Returns:
        The windows by transformers' names of layer types. One entry where all layers are alike.

    Raises:
        BatchError: a kind of layer whose mask is not known here.
    """
    config = config_of(model_or_config)
    window = getattr(config, "sliding_window", None)
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
    if not kinds:
        uses = getattr(config, "use_sliding_window", True)
        return {SLIDING: window} if window is not None and uses else {FULL: None}
    unknown = [kind for kind in kinds if kind not in (FULL, SLIDING)]
    if unknown:
        raise BatchError(
            f"layers must be {FULL} or {SLIDING} to be given a dense mask, got {shown(unknown)}; "
            "take for_hf_sdpa(), which leaves the masks to transformers"
        )
    if SLIDING in kinds and window is None:
        raise BatchError(f"the config must say sliding_window for its {SLIDING} layers, got None")
    return {kind: window if kind == SLIDING else None for kind in kinds}


def has_recurrent_layers(model_or_config: Any) -> bool:
    """Whether some layers carry a state along the row; None stands for a model without any."""
    kinds = getattr(config_of(model_or_config), "layer_types", None) or ()
    return any(kind in RECURRENT for kind in kinds)


def mask_by_layer(windows: dict[str, int | None], build: Callable[[int | None], Any]) -> Any:
    """Return one mask, or a dict by layer types where a model's layers differ."""
    if len(windows) == 1:
        return build(next(iter(windows.values())))
    return {kind: build(window) for kind, window in windows.items()}
