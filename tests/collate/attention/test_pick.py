"""Choosing an attention implementation: on evidence, with reasons, and it isolates."""

import dataclasses
import warnings
from types import SimpleNamespace

import pytest
import torch

from raypack.audit.doctor.tiny_model import load_config
from raypack.audit.doctor.tiny_model import tiny_model as copy_of
from raypack.collate import BatchError, IsolationError, PackedBatch, assert_isolated, pick_attention
from raypack.collate.architectures import ENCODERS, ISOLATES, ONE_A_ROW, TRANSFORMERS
from raypack.collate.attention import pick
from raypack.collate.attention.pick import AttentionEvidence
from tests.support.models import DOCUMENTS, tiny_model

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
    assert_isolated(model, batch, export=lambda b: choice.export(b, model))


def test_evidence_is_read_from_a_config_alone():
    config = SimpleNamespace(hidden_size=96, num_attention_heads=4, dtype="float32")
    config.model_type = "llama"
    evidence = pick_attention(config, "cpu", dtype=torch.float16).evidence
    assert evidence.head_dim == 24
    assert evidence.dtype == torch.float16
    assert evidence.causal


def as_decoder(model_type):
    config = load_config(model_type)
    if hasattr(config, "is_decoder"):
        config.is_decoder, config.is_encoder_decoder = True, False
    return config


def trial(**options):
    ids = torch.arange(3, 27).split([5, 1, 11, 7])
    return PackedBatch.from_documents(ids, pad_id=1, **options)


NO_POSITIONS = ["afmoe", "bert", "roberta", "electra", "opt", "biogpt"]
ROWS = {
    "bart": "counts positions along the row",
    "pegasus": "counts positions along the row",
    "mbart": "counts positions along the row",
    "blenderbot": "counts positions along the row",
    "bloom": "takes no mask that tells documents",
    "openai-gpt": "takes no mask that tells documents",
    "mamba": "carries a state along the row",
    "jamba": "carries a state along the row",
}


@pytest.mark.parametrize(
    "model_type", [*NO_POSITIONS, "gpt_oss", "gpt_neo", "falcon", "moshi", "llama4_text"]
)
def test_a_config_and_its_model_get_the_same_answer_and_it_isolates(model_type):
    pytest.importorskip("transformers")
    config = as_decoder(model_type)
    choice = pick_attention(config, "cpu")
    model = copy_of(config, choice.implementation, torch.float32, "cpu")
    again = pick_attention(model, "cpu")
    assert (again.implementation, again.reasons) == (choice.implementation, choice.reasons)
    assert choice.implementation == ("sdpa" if model_type in ("falcon", "moshi", "llama4_text") else "eager")
    batch = trial(pad_to=32, position_offset=2 if model_type == "roberta" else 0)
    assert_isolated(model, batch, export=lambda b: choice.export(b, model))


@pytest.mark.parametrize("model_type", NO_POSITIONS)
def test_sdpa_is_not_taken_where_the_mask_is_made_without_positions_for_documents_leak(model_type):
    pytest.importorskip("transformers")
    config = as_decoder(model_type)
    reason = f"sdpa: {model_type} makes its mask without positions"
    assert reason in pick_attention(config, "cpu").reasons[2]
    model = copy_of(config, "sdpa", torch.float32, "cpu")
    with pytest.raises(IsolationError, match="document 0 into document 2"):
        assert_isolated(model, trial(pad_to=32, position_offset=2 if model_type == "roberta" else 0))


@pytest.mark.parametrize("model_type", ROWS)
def test_where_no_packed_row_is_isolated_one_document_a_row_is(model_type):
    pytest.importorskip("transformers")
    config = as_decoder(model_type)
    with pytest.raises(ValueError, match=rf"{model_type} {ROWS[model_type]}.*layout='padded'"):
        pick_attention(config, "cpu")
    choice = pick_attention(config, "cpu", layout="padded")
    model = copy_of(config, choice.implementation, torch.float32, "cpu")
    assert_isolated(model, trial(layout="padded", pad_to=16), export=lambda b: choice.export(b, model))
    assert_isolated(model, trial(layout="padded"))
    for refused in (trial(), trial(layout="padded", padding_side="left")):
        with pytest.raises(BatchError, match="one document a row, padded on the right"):
            choice.export(refused, model)


def test_an_encoder_sees_both_ways_and_is_told_its_documents_by_a_mask():
    pytest.importorskip("transformers")
    choice = pick_attention(load_config("bert"), "cpu")
    assert (choice.implementation, choice.evidence.causal) == ("sdpa", False)
    model = copy_of(load_config("bert"), "sdpa", torch.float32, "cpu")
    assert_isolated(model, trial(pad_to=32), export=lambda b: choice.export(b, model))


def test_what_has_not_been_tried_gets_eager_and_a_warning_that_names_the_proof():
    config = SimpleNamespace(hidden_size=96, num_attention_heads=4, model_type="brand_new")
    with pytest.warns(UserWarning, match=r"'brand_new' is not among .*raypack\.assert_isolated"):
        choice = pick_attention(config, "cpu")
    assert choice.implementation == "eager"
    assert "sdpa: 'brand_new' has not been tried" in choice.reasons
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pick_attention(SimpleNamespace(model_type="llama"), "cpu")


def test_the_table_names_model_types_of_transformers_and_none_twice():
    transformers = pytest.importorskip("transformers")
    if not transformers.__version__.startswith(TRANSFORMERS):
        pytest.skip(f"the table was made with transformers {TRANSFORMERS}")
    known = set(transformers.CONFIG_MAPPING)
    assert {*ISOLATES, *ONE_A_ROW, *ENCODERS} <= known
    assert not set(ISOLATES) & set(ONE_A_ROW)
