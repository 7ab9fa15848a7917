"""Layers that carry a state: they leak without offsets, get them, and TRL's names are the same."""

import logging
from types import SimpleNamespace

import pytest
import torch

from raypack.collate import BatchError, IsolationError, PackedBatch, assert_isolated, pick_attention
from tests.support.models import DOCUMENTS, tiny_model

HYBRID = {
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}


def packed(**options):
    return PackedBatch.from_documents(DOCUMENTS, **{"pad_to": 19, **options})


@pytest.fixture
def hybrid(monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "disabled", True)
    return tiny_model("Qwen3Next", **HYBRID)


def test_positions_alone_would_let_a_state_run_into_the_next_document(hybrid):
    with pytest.raises(IsolationError, match="document 0 into document 1"):
        assert_isolated(hybrid, packed(), export=PackedBatch.for_hf_sdpa)


def test_without_their_kernels_recurrent_layers_refuse_a_packed_row_and_never_leak(hybrid):
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        assert_isolated(hybrid, packed())
    choice = pick_attention(hybrid)
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        hybrid(**choice.export(packed(), hybrid))


def test_rows_of_one_document_with_padding_after_it_need_nothing(hybrid):
    assert packed(layout="padded").for_linear_attention() == {}
    assert_isolated(hybrid, packed(layout="padded"))


def test_padding_before_a_document_is_refused(hybrid):
    batch = packed(layout="padded", padding_side="left")
    with pytest.raises(BatchError, match="padding_side must be 'right' for recurrent layers"):
        batch.for_hf_sdpa(hybrid)


@pytest.mark.parametrize("kind", ["linear_attention", "conv", "hybrid", "mamba"])
def test_sdpa_gets_offsets_where_a_layer_is_recurrent_and_only_there(kind):
    config = SimpleNamespace(layer_types=["full_attention", kind])
    inputs = packed().for_hf_sdpa(config)
    beside = packed().for_linear_attention()
    assert set(beside) == {"seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
    assert set(inputs) == {"input_ids", "position_ids", "use_cache", *beside}
    assert "seq_idx" not in packed().for_hf_sdpa(SimpleNamespace(layer_types=["full_attention"]))


def test_seq_idx_numbers_the_documents_from_0_and_padding_last():
    seq_idx = packed(pad_documents_to=5).for_linear_attention()["seq_idx"]
    assert seq_idx.dtype == torch.int32
    assert seq_idx.tolist() == [[0] * 5 + [1] * 3 + [2] * 7 + [3] * 4]


def test_trl_gets_what_flash_gets_and_the_labels():
    batch = packed()
    ours, flash = batch.for_trl(), batch.for_hf_flash()
    assert set(ours) == {*flash, "labels"}
    assert torch.equal(ours["labels"], batch.labels)
    assert "attention_mask" not in ours


def test_trls_arguments_isolate_and_train_on_what_the_batch_supervises():
    batch, model = packed(), tiny_model("Llama", "sdpa")
    assert_isolated(model, batch, export=lambda b: {**b.for_trl(), "labels": None})
    ours = model(**batch.for_trl()).loss
    assert torch.allclose(ours, model(**batch.for_hf_sdpa(), **batch.for_hf_loss()).loss, rtol=1e-4)


def test_trl_is_refused_for_padded_rows():
    with pytest.raises(BatchError, match="layout must be 'packed'"):
        packed(layout="padded").for_trl()
