"""Tiny models as they are initialised for training, where a whole leak moves logits by a few hundredths."""

import pytest
import torch

LENGTHS = (23, 5, 31, 1, 17)
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
WINDOW = 8
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": WINDOW},
    "Gemma2": {"head_dim": 16, "sliding_window": WINDOW},
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 96},
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 16,
    },
    "GptOss": {"num_local_experts": 4, "head_dim": 16, "sliding_window": WINDOW},
}
WITHOUT_SDPA = ("Gemma2", "GptOss")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def documents():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, 96, (length,), generator=generator).tolist() for length in LENGTHS]


def quiet_model(name, attention, dtype, **options):
    """Make a model with initial weights and embeddings of unit variance."""
    transformers = pytest.importorskip("transformers")
    sizes = MODELS[name] if name == "GPT2" else {**SIZES, **MODELS[name]}
    config = getattr(transformers, f"{name}Config")(**{**sizes, **options})
    config._attn_implementation = attention
    torch.manual_seed(0)
    kind = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    model = getattr(transformers, f"{name}{kind}")(config).eval().requires_grad_(False)
    torch.nn.init.normal_(model.get_input_embeddings().weight)
    return model.to(dtype)
