"""Positions that do not count from 0, and what their consumers make of them."""

import pytest
import torch

from raypack.collate import PackedBatch, assert_isolated
from tests.support.models import DOCUMENTS, LOUD, TIGHT, leak, tiny_model


def packed(**options):
    return PackedBatch.from_documents(DOCUMENTS, **{"pad_to": 19, **options})


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_every_document_and_every_pad_token_starts_at_the_offset(layout):
    plain, moved = packed(layout=layout), packed(layout=layout, position_offset=2)
    assert moved.position_offset == 2
    assert torch.equal(moved.position_ids, plain.position_ids + 2)
    assert moved.position_ids[moved.segment_ids == 0].unique().tolist() == [2]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("offset", [1, 2, 11])
@pytest.mark.parametrize("side", [None, "right", "left"])
def test_documents_stay_apart_at_any_offset(attention, offset, side):
    options = {} if side is None else {"layout": "padded", "padding_side": side}
    batch = packed(position_offset=offset, **options)
    assert_isolated(tiny_model("Llama", attention), batch)


def test_a_model_of_absolute_positions_is_compared_at_the_same_positions():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=32, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    config._attn_implementation = "sdpa"
    model = transformers.GPT2LMHeadModel(config).eval()
    for layout in ("packed", "padded"):
        assert_isolated(model, packed(layout=layout, position_offset=2))
    moved, plain = packed(position_offset=2), packed()
    assert not torch.allclose(
        model(**moved.for_hf_sdpa()).logits, model(**plain.for_hf_sdpa()).logits, atol=1e-5
    )


def test_padding_that_counted_up_to_the_offset_would_run_into_its_document():
    batch = packed(layout="padded", padding_side="left", position_offset=1)
    model, inputs = tiny_model("Llama", "sdpa"), batch.for_hf_sdpa()
    assert leak(model, batch, inputs) < TIGHT
    joined = torch.where(batch.segment_ids == 0, 0, inputs["position_ids"])
    assert leak(model, batch, {**inputs, "position_ids": joined}) > LOUD
