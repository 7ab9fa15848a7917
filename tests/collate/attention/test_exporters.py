"""Each exporter isolates with its real consumer, and the traps beside it leak."""

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from raypack.collate import BatchError, PackedBatch, assert_isolated, build_attention_mask
from raypack.collate.attention.exporters import closed_offsets
from tests.support.models import DOCUMENTS, LOUD, TIGHT, leak, tiny_model

LAYOUTS = [
    {"pad_to": 16},
    {"pad_to": 19},
    {"layout": "padded"},
    {"layout": "padded", "pad_to": 9},
    {"layout": "padded", "pad_to": 9, "padding_side": "left"},
]
MODELS = [
    ("Llama", {}),
    ("Mistral", {"sliding_window": 3}),
    ("Qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
]


def packed(**options):
    return PackedBatch.from_documents(DOCUMENTS, **{"pad_to": 19, **options})


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize(("name", "config"), MODELS)
def test_hf_sdpa_gives_each_document_its_own_logits(name, config, options):
    batch, model = PackedBatch.from_documents(DOCUMENTS, **options), tiny_model(name, "sdpa", **config)
    inputs = batch.for_hf_sdpa()
    assert leak(model, batch, inputs) < TIGHT
    assert torch.isfinite(model(**inputs).logits).all()


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize(("name", "config"), MODELS)
def test_hf_eager_gives_each_document_its_own_logits(name, config, options):
    batch, model = PackedBatch.from_documents(DOCUMENTS, **options), tiny_model(name, "eager", **config)
    inputs = batch.for_hf_eager(torch.float32, model)
    assert leak(model, batch, inputs) < TIGHT
    assert torch.isfinite(model(**inputs).logits).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_hf_eager_in_half_precision_isolates_with_a_minimum_of_its_own_dtype(dtype):
    batch, model = packed(), tiny_model("Llama", "eager", dtype)
    inputs = batch.for_hf_eager(dtype)
    assert inputs["attention_mask"].dtype == dtype
    assert torch.isfinite(model(**inputs).logits).all()
    assert_isolated(model, batch)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_model_that_sees_both_ways_is_isolated_by_a_mask(attention):
    batch, model = packed(), tiny_model("Llama", attention)
    model.config.is_causal = False
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    options = {"kind": "bidirectional"}
    inputs = (
        batch.for_hf_sdpa(**options) if attention == "sdpa" else batch.for_hf_eager(torch.float32, **options)
    )
    assert leak(model, batch, inputs) < TIGHT
    assert leak(model, batch, batch.for_hf_sdpa()) > LOUD


@pytest.mark.parametrize(("name", "config"), MODELS[2:])
def test_hf_flex_gives_each_document_its_own_logits(name, config):
    batch, model = packed(), tiny_model(name, "flex_attention", **config)
    reference = tiny_model(name, "sdpa", **config)
    inputs = batch.for_hf_flex(model)
    model.requires_grad_(False)
    assert leak(model, batch, inputs, reference) < TIGHT


def varlen_by_segments(module, query, key, value, attention_mask, *, cu_seq_lens_q, **options):
    """Attend as a varlen kernel does: each stretch of the offsets alone, NaN where they do not reach."""
    assert attention_mask is None
    assert cu_seq_lens_q.dtype == torch.int32
    assert options["max_length_q"] == cu_seq_lens_q.diff().max()
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    out = torch.full_like(query, float("nan"))
    edges = cu_seq_lens_q.tolist()
    for start, stop in pairwise(edges):
        q, k, v = (x[:, :, start:stop] for x in (query, key, value))
        out[:, :, start:stop] = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=options["scaling"]
        )
    return out.transpose(1, 2), None


@pytest.mark.parametrize("slots", [None, 3, 6])
@pytest.mark.parametrize("pad_to", [15, 19])
def test_the_offsets_for_flash_cover_every_token_and_isolate(pad_to, slots):
    transformers = pytest.importorskip("transformers")
    transformers.AttentionInterface.register("by_segments", varlen_by_segments)
    batch, model = packed(pad_to=pad_to, pad_documents_to=slots), tiny_model("Llama", "by_segments")
    inputs = batch.for_hf_flash()
    logits = model(**inputs).logits
    assert torch.isfinite(logits).all()
    assert leak(model, batch, inputs, tiny_model("Llama", "sdpa")) < TIGHT


def test_flash_gets_all_four_offsets_and_no_mask():
    inputs = packed().for_hf_flash()
    assert inputs["cu_seq_lens_q"].tolist() == inputs["cu_seq_lens_k"].tolist() == [0, 5, 8, 15, 19]
    assert inputs["max_length_q"] == inputs["max_length_k"] == 7
    assert type(inputs["max_length_q"]) is int
    assert inputs["seq_idx"].tolist() == [[0] * 5 + [1] * 3 + [2] * 7 + [3] * 4]
    assert inputs["seq_idx"].dtype == torch.int32
    assert "attention_mask" not in inputs
    assert packed(pad_to=30).for_hf_flash()["max_length_q"] == 15
    assert packed(pad_to=15).for_hf_flash()["cu_seq_lens_q"].tolist() == [0, 5, 8, 15]


def test_flash_gets_padded_rows_with_the_mask_that_removes_the_padding():
    inputs = packed(layout="padded", pad_to=8).for_hf_flash()
    assert inputs["attention_mask"].sum(1).tolist() == [5, 3, 7]
    assert "cu_seq_lens_q" not in inputs
    alike = PackedBatch.from_documents([[1, 2], [3, 4]], layout="padded")
    assert "attention_mask" not in alike.for_hf_flash()
    assert "attention_mask" not in PackedBatch.from_documents([], layout="padded", pad_to=4).for_hf_flash()


@pytest.mark.parametrize(
    ("attention", "layout"), [("sdpa", "packed"), ("eager", "packed"), ("sdpa", "padded")]
)
def test_an_empty_batch_passes_through_a_model_with_finite_logits(attention, layout):
    batch, model = PackedBatch.from_documents([], pad_to=6, layout=layout), tiny_model("Llama", attention)
    inputs = batch.for_hf_sdpa() if attention == "sdpa" else batch.for_hf_eager(torch.float32)
    assert torch.isfinite(model(**inputs).logits).all()
    if layout == "packed":
        assert batch.for_hf_flash()["cu_seq_lens_q"].tolist() == [0, 6]


TRAPS = {
    "a cache, as models make by default": ("sdpa", lambda b: {"use_cache": True}),
    "a mask of ones": ("sdpa", lambda b: {"attention_mask": torch.ones_like(b.input_ids)}),
    "a padding mask": ("sdpa", lambda b: {"attention_mask": (b.segment_ids != 0).long()}),
    "segment ids as a mask": ("eager", lambda b: {"attention_mask": b.segment_ids}),
    "offsets alone": ("sdpa", lambda b: {**b.for_hf_flash(), "position_ids": None}),
    "a boolean mask for eager": (
        "eager",
        lambda b: {"attention_mask": build_attention_mask(segment_ids=b.segment_ids, dtype=torch.bool)},
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_what_exporters_leave_out_would_leak(trap):
    attention, change = TRAPS[trap]
    batch, model = packed(), tiny_model("Llama", attention)
    assert leak(model, batch, {**batch.for_hf_sdpa(), **change(batch)}) > LOUD


def test_a_full_causal_mask_would_erase_a_sliding_window():
    batch, model = packed(), tiny_model("Mistral", "eager", sliding_window=3)
    assert leak(model, batch, batch.for_hf_eager(torch.float32)) > LOUD
    assert leak(model, batch, batch.for_hf_eager(torch.float32, model)) < TIGHT


def test_a_minimum_cast_to_a_narrower_dtype_is_minus_infinity_ours_is_not():
    offsets, total = closed_offsets(packed())[0][:-1], 19
    wide = build_attention_mask(offsets, total, torch.float32)
    assert torch.isinf(wide.to(torch.float16)).any()
    assert torch.isfinite(build_attention_mask(offsets, total, torch.float16)).all()


def test_layers_that_differ_get_a_mask_each():
    model = tiny_model("Qwen2", "eager", use_sliding_window=True, sliding_window=3, max_window_layers=1)
    masks = packed().for_hf_eager(torch.float32, model)["attention_mask"]
    assert set(masks) == {"full_attention", "sliding_attention"}
    seen = {name: int((mask == 0).sum()) for name, mask in masks.items()}
    assert seen == {"full_attention": 15 + 6 + 28 + 4, "sliding_attention": 12 + 6 + 18 + 4}


def test_a_layer_whose_mask_is_not_known_is_refused():
    model = tiny_model("Llama", "eager")
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(BatchError, match=r"chunked_attention.*for_hf_sdpa"):
        packed().for_hf_eager(torch.float32, model)


@pytest.mark.parametrize("pad_rows", ["blocked", "self"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_plain_sdpa_gives_each_document_its_own_attention(dtype, pad_rows):
    torch.manual_seed(1)
    batch = packed()
    q, k, v = torch.randn(3, 1, 4, 19, 8).unbind()
    mask = build_attention_mask(batch.cu_seqlens, 19, dtype, pad_rows=pad_rows)
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    for start, stop in [(0, 5), (5, 8), (8, 15)]:
        alone = scaled_dot_product_attention(*(x[:, :, start:stop] for x in (q, k, v)), is_causal=True)
        assert torch.allclose(out[:, :, start:stop], alone, atol=TIGHT)
    assert torch.isfinite(out).all()


def test_torch_varlen_gets_a_causal_window_for_there_is_no_causal_flag():
    arguments = packed().for_torch_varlen()
    assert arguments["cu_seq_q"].tolist() == arguments["cu_seq_k"].tolist() == [0, 5, 8, 15, 19]
    assert (arguments["max_q"], arguments["max_k"], arguments["window_size"]) == (7, 7, (-1, 0))
    assert packed().for_torch_varlen(window=3)["window_size"] == (2, 0)


def test_megatron_gets_packed_sequences_in_thd():
    arguments = packed().for_megatron()
    assert arguments["qkv_format"] == "thd"
    assert arguments["cu_seqlens_q"].tolist() == arguments["cu_seqlens_kv"].tolist() == [0, 5, 8, 15, 19]
    assert arguments["max_seqlen_q"] == arguments["max_seqlen_kv"] == 7


@pytest.mark.parametrize("export", ["for_torch_varlen", "for_megatron"])
def test_offsets_are_refused_for_padded_rows(export):
    with pytest.raises(BatchError, match="layout must be 'packed' for offsets, got 'padded'"):
        getattr(packed(layout="padded"), export)()


def test_a_boolean_mask_is_refused_for_eager_attention():
    with pytest.raises(BatchError, match="eager attention, which adds its mask"):
        packed().for_hf_eager(torch.bool)
