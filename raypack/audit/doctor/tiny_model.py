"""A tiny random copy of a transformers architecture, made offline from its config."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from raypack.errors import DoctorError

VOCABULARY = 64
HEAD_DIM = 16
"""Width of a head: the least that flash and flex attention take on CUDA."""
WINDOW = 4
"""Keys that a query of a sliding or chunked layer sees: fewer than the documents have."""
LOUDNESS = 5
"""What weights are multiplied with: as they are drawn, tokens hardly move one another's logits."""
_SMALL = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "sliding_window": WINDOW,
    "attention_chunk_size": WINDOW,
    "head_dim": HEAD_DIM,
    "qk_nope_head_dim": HEAD_DIM,
    "qk_rope_head_dim": HEAD_DIM,
    "v_head_dim": HEAD_DIM,
    "qk_head_dim": 2 * HEAD_DIM,
    "kv_lora_rank": HEAD_DIM,
    "q_lora_rank": HEAD_DIM,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_kv_shared_layers": 0,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "mamba_d_head": HEAD_DIM,
}
"""What a config may say, and what the copy says instead, at the most."""
_WIDE = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "intermediate_size_mlp",
    "ffn_dim",
    "ffn_hidden_size",
    "n_inner",
)
_ROPE = ("rope_theta", "partial_rotary_factor")
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def load_config(model: str) -> Any:
    """Return the config of a model's text part, from this machine alone.

    Args:
        model: a folder with a ``config.json``, such a file, or a model type that transformers knows.

    Raises:
        DoctorError: transformers is missing, or there is no such config.
    """
    transformers = _transformers()
    path = Path(model)
    try:
        if path.exists():
            values = _parsed(path)
            config = transformers.CONFIG_MAPPING[values["model_type"]].from_dict(values)
        elif model in transformers.CONFIG_MAPPING:
            config = transformers.CONFIG_MAPPING[model]()
        else:
            raise DoctorError(_unknown(model, transformers.CONFIG_MAPPING))
    except DoctorError:
        raise
    except Exception as error:
        raise DoctorError(f"{model}: transformers cannot read this config: {error!r}") from error
    return config.get_text_config()


def tiny_model(config: Any, attention: str, dtype: Any, device: Any) -> Any:
    """Return a causal model of the config's architecture with few, narrow layers and random weights.

    Args:
        config: of the full model.
        attention: ``attn_implementation`` of the copy.
        dtype: of its weights.
        device: where it lies.

    Raises:
        DoctorError: the config cannot be made small.
        Exception: whatever transformers raises where it cannot make such a model.
    """
    import torch

    transformers = _transformers()
    small = tiny_config(config)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(small, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(LOUDNESS)
    return model.eval().requires_grad_(False).to(device=device, dtype=dtype)


def tiny_config(config: Any) -> Any:
    """Return a small copy of a config: one layer of each kind, the same ratio of heads to key heads.

    Raises:
        DoctorError: its sizes do not fit together.
    """
    values = config.to_dict()
    names = dict(config.attribute_map or {})
    heads, key_heads = _heads(config)
    kept = _kept_layers(config)
    changes = {
        **{name: _at_most(values[name], small) for name, small in _SMALL.items() if name in values},
        **{name: 2 * heads * HEAD_DIM for name in _WIDE if values.get(name) is not None},
        **{name: None for name in _TOKENS if not _is_small_token(values.get(name))},
        **{name: [value[k] for k in kept] for name, value in values.items() if _is_per_layer(value, config)},
        **_wanted(values, names, heads, key_heads, len(kept)),
    }
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(values.get(name), dict):
            changes[name] = _plain_rope(values[name])
    values.pop("quantization_config", None)
    try:
        return type(config).from_dict({**values, **changes})
    except Exception as error:
        raise DoctorError(f"no small copy can be made of a {config.model_type}: {error}") from error


def _wanted(
    values: dict[str, Any], names: dict[str, str], heads: int, key_heads: int, layers: int
) -> dict[str, Any]:
    """Return sizes that belong together, under the names that this config has for them."""
    width = heads * HEAD_DIM
    wanted = {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "num_kv_heads": key_heads,
        "num_hidden_layers": layers,
        "word_embed_proj_dim": width,
        "mamba_n_heads": values.get("mamba_expand", 1) * heads,
        "mamba_d_ssm": values.get("mamba_expand", 1) * width,
        "max_position_embeddings": 256,
    }
    if "expand" in values:
        wanted["num_heads"] = values["expand"] * heads
    return {names.get(name, name): value for name, value in wanted.items() if names.get(name, name) in values}


def _heads(config: Any) -> tuple[int, int]:
    """Return heads and key heads: their ratio is kept up to 8."""
    heads = getattr(config, "num_attention_heads", None) or 4
    given = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None) or heads
    ratio = min(max(heads // given, 1), 8)
    key_heads = 1 if given == 1 else 2
    return (4, 4) if ratio == 1 and given > 1 else (ratio * key_heads, key_heads)


def _kept_layers(config: Any) -> list[int]:
    """Return the first layer of each kind; of one kind, two."""
    count = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["the same"] * count
    firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    return firsts if len(firsts) > 1 else list(range(min(count, 2)))


def _is_per_layer(value: Any, config: Any) -> bool:
    return isinstance(value, list) and len(value) == config.num_hidden_layers


def _plain_rope(rope: dict[str, Any]) -> dict[str, Any]:
    """Return rotary parameters without scaling, whose tables are of the full model's width."""
    if any(isinstance(value, dict) for value in rope.values()):
        return {name: _plain_rope(value) for name, value in rope.items()}
    kept: dict[str, Any] = {name: rope[name] for name in _ROPE if name in rope}
    return {**kept, "rope_type": "default"}


def _at_most(value: Any, small: int) -> Any:
    return min(value, small) if isinstance(value, int) and not isinstance(value, bool) else value


def _is_small_token(value: Any) -> bool:
    return isinstance(value, int) and value < VOCABULARY


def _parsed(path: Path) -> dict[str, Any]:
    """Return what a config file says."""
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise DoctorError(f"{path} must hold a config.json; give a model's folder, its config or its type")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DoctorError(f"{file} is no JSON: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise DoctorError(f"{file} must name its model_type, as transformers writes it")
    if "auto_map" in values:
        raise DoctorError(f"{file} asks for code of its own (auto_map), which is not run; give a model type")
    return values


def _unknown(model: str, known: Any) -> str:
    close = difflib.get_close_matches(model.lower(), list(known), n=3, cutoff=0.5)
    hint = f"; near are {', '.join(close)}" if close else ""
    return (
        f"{model!r} is no folder or file here, and no model type that transformers knows{hint}; give a "
        "model's folder, its config.json or its type"
    )


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise DoctorError("transformers is needed: pip install 'raypack[hf]'") from error
    transformers.logging.set_verbosity_error()
    return transformers
