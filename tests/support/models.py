"""Tiny random models of the real library, loud enough that a leak shows."""

import pytest
import torch

DOCUMENTS = [[5, 6, 7, 8, 9], [10, 11, 12], [13, 14, 15, 16, 17, 18, 19]]


def tiny_model(name="Llama", attention="sdpa", dtype=torch.float32, **options):
    """Make a causal model of transformers; options go to its config."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **options,
    )
    config._attn_implementation = attention
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(5)
    return model.to(dtype)


def real_logits(logits, batch):
    """Pick the logits of real tokens, (tokens, V), in the order of the documents."""
    return logits[batch.segment_ids != 0]


def logits_alone(model, documents=DOCUMENTS, **options):
    """Run each document on its own, and put the logits one after another."""
    return torch.cat(
        [model(input_ids=torch.tensor([d]), use_cache=False, **options).logits[0] for d in documents]
    )


TIGHT, LOUD = 1e-3, 3e-2
"""Parts of the largest logit: rounding in float32 stays a hundred times below the first, whatever the
machine, and what a leak does to these models lies far above the second."""


def leak(model, batch, inputs, reference=None, **options):
    """Return how far packed logits are from those of each document alone, as a part of the largest."""
    alone = logits_alone(model if reference is None else reference, **options)
    difference = real_logits(model(**inputs).logits, batch) - alone
    return (difference.abs().max() / alone.abs().max()).item()
