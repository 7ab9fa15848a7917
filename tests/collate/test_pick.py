"""Choosing an attention implementation: on evidence, with reasons, and it isolates."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from raypack.collate import PackedBatch, assert_isolated, pick, pick_attention
from raypack.collate.pick import AttentionEvidence
from tests.collate.models import DOCUMENTS, tiny_model

HOPPER = AttentionEvidence(
    device_type="cuda",
    capability=(9, 0),
    dtype=torch.bfloat16,
    head_dim=128,
    flash_attn=True,
    causal=True,
    softcap=False,
    dropout=False,
    layer_types=("full_attention",),
    unsupported=(),
    model_type="llama",
)


def choose(monkeypatch, **changes):
    evidence = dataclasses.replace(HOPPER, **changes)
    monkeypatch.setattr(pick, "gather_evidence", lambda *_: evidence)
    return pick_attention(None)


def test_flash_attention_is_first_where_nothing_speaks_against_it(monkeypatch):
    choice = choose(monkeypatch)
    assert (choice.implementation, choice.exporter) == ("flash_attention_2", "for_hf_flash")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"flash_attn": False}, "flash_attn is not installed"),
        ({"capability": (7, 5)}, "needs compute capability 8.0, the device has 7.5"),
        ({"dtype": torch.float32}, "attention computes in torch.float32"),
        ({"dtype": None}, "attention computes in an unknown dtype"),
        ({"head_dim": 512}, "heads of at most 256, the config says 512"),
        ({"unsupported": ("flash_attention_2",)}, "the model's class does not support it"),
    ],
)
def test_flex_attention_is_next_and_says_why_flash_was_not_taken(monkeypatch, changes, reason):
    choice = choose(monkeypatch, **changes)
    assert choice.implementation == "flex_attention"
    assert reason in choice.reasons[0]


@pytest.mark.parametrize(
    ("changes", "implementation"),
    [
        ({"device_type": "cpu", "capability": None}, "sdpa"),
        ({"flash_attn": False, "dropout": True}, "sdpa"),
        ({"flash_attn": False, "causal": False}, "sdpa"),
        ({"layer_types": ("full_attention", "chunked_attention")}, "sdpa"),
        ({"device_type": "cpu", "softcap": True}, "eager"),
    ],
)
def test_dense_masks_are_last(monkeypatch, changes, implementation):
    choice = choose(monkeypatch, **changes)
    assert choice.implementation == implementation
    assert len(choice.reasons) == {"sdpa": 3, "eager": 4}[implementation]


def test_where_nothing_isolates_every_reason_is_told(monkeypatch):
    with pytest.raises(ValueError, match=r"flash_attention_2: .*; flex.*; sdpa: .*; eager: no mask"):
        choose(monkeypatch, device_type="cpu", softcap=True, layer_types=("chunked_attention",))


@pytest.mark.parametrize(
    ("name", "config"), [("Llama", {}), ("Mistral", {"sliding_window": 3}), ("Gemma2", {"sliding_window": 4})]
)
def test_the_choice_for_a_real_model_isolates_it(name, config):
    options = {**config, "head_dim": 8} if name == "Gemma2" else config
    choice = pick_attention(tiny_model(name, "eager", **options))
    assert choice.implementation == ("eager" if name == "Gemma2" else "sdpa")
    model = tiny_model(name, choice.implementation, **options)
    batch = PackedBatch.from_documents(DOCUMENTS, pad_to=19)
    assert assert_isolated(model, batch, export=lambda b: choice.export(b, model)) < 1e-4


def test_evidence_is_read_from_a_config_alone():
    config = SimpleNamespace(hidden_size=96, num_attention_heads=4, dtype="float32")
    evidence = pick_attention(config, "cpu", dtype=torch.float16).evidence
    assert evidence.head_dim == 24
    assert evidence.dtype == torch.float16
    assert evidence.causal


@pytest.mark.parametrize("model_type", ["opt", "biogpt"])
def test_sdpa_is_not_taken_where_the_mask_is_made_without_positions(model_type):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type)
    choice = pick_attention(config, "cpu")
    assert choice.implementation == "eager"
    assert f"sdpa: {model_type} makes its mask without positions" in choice.reasons[2]
