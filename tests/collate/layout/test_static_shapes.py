"""A fixed number of tokens and of documents: one shape for every batch, and the same answers."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raypack.collate import PackedBatch, assert_isolated, build_attention_mask
from raypack.collate.attention.exporters import closed_offsets
from tests.support.models import DOCUMENTS, tiny_model


def static(documents=DOCUMENTS, **options):
    return PackedBatch.from_documents(documents, **{"pad_to": 19, "pad_documents_to": 6, **options})


def shapes(batch):
    names = ("input_ids", "labels", "position_ids", "segment_ids", "cu_seqlens")
    return [tuple(getattr(batch, name).shape) for name in names]


def test_the_last_offset_is_repeated_for_documents_that_are_not_there():
    batch = static()
    assert batch.cu_seqlens.tolist() == [0, 5, 8, 15, 15, 15, 15]
    assert batch.document_offsets.tolist() == [0, 5, 8, 15]
    assert (batch.num_documents, batch.num_tokens, batch.max_seqlen) == (3, 15, 7)
    assert batch.indices.tolist() == [0, 1, 2]
    plain = PackedBatch.from_documents(DOCUMENTS, pad_to=19)
    for name in ("input_ids", "labels", "position_ids", "segment_ids"):
        assert torch.equal(getattr(batch, name), getattr(plain, name))


@pytest.mark.parametrize("layout", ["packed", "padded"])
@given(lengths=st.lists(st.integers(1, 3), max_size=6))
def test_every_batch_has_one_shape(layout, lengths):
    documents = [[5] * n for n in lengths]
    assert shapes(static(documents, layout=layout)) == shapes(static([], layout=layout))


@given(st.lists(st.integers(1, 3), max_size=6))
def test_offsets_for_kernels_have_one_length_cover_every_token_and_end_in_padding(lengths):
    batch = static([[5] * n for n in lengths], pad_to=18)
    offsets, longest = closed_offsets(batch)
    steps = offsets.diff().tolist()
    assert len(offsets) == 6 + 2
    assert [n for n in steps if n] == [*lengths, *([18 - sum(lengths)] if sum(lengths) < 18 else [])]
    assert offsets[0] == 0
    assert offsets[-1] == 18
    assert longest == max(steps)


def test_a_row_that_is_exactly_full_keeps_the_length_of_its_offsets():
    full = static(pad_to=15, pad_documents_to=3)
    assert full.cu_seqlens.tolist() == [0, 5, 8, 15]
    assert closed_offsets(full)[0].tolist() == [0, 5, 8, 15, 15]
    assert closed_offsets(static(pad_to=16, pad_documents_to=3))[0].tolist() == [0, 5, 8, 15, 16]


def test_padded_batches_get_rows_of_padding():
    batch = static(layout="padded", pad_to=8, pad_documents_to=5, padding_side="left", pad_id=3)
    assert batch.input_ids.shape == (5, 8)
    assert batch.input_ids[3:].unique().tolist() == [3]
    assert batch.segment_ids.sum(1).tolist() == [5, 3, 7, 0, 0]
    assert batch.labels[3:].unique().tolist() == [-100]
    assert batch.num_padding == 25


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize(
    "options", [{}, {"layout": "padded", "pad_to": 9}, {"layout": "padded", "padding_side": "left"}]
)
def test_models_keep_the_documents_apart(attention, options):
    model = tiny_model("Mistral", attention, sliding_window=3).requires_grad_(False)
    assert_isolated(model, static(**options))


def test_a_leak_is_still_found_and_named():
    model = tiny_model("Llama", "sdpa")
    with pytest.raises(AssertionError, match="document 1 into document 2"):
        assert_isolated(model, static(), export=lambda b: {**b.for_hf_sdpa(), "use_cache": True})


@pytest.mark.parametrize("window", [None, 3])
def test_masks_take_the_repeated_offsets_as_they_are(window):
    batch = static()
    ours = build_attention_mask(batch.cu_seqlens, 19, torch.bool, window=window)
    assert torch.equal(ours, build_attention_mask(batch.document_offsets, 19, torch.bool, window=window))
    full = build_attention_mask(np.array([0, 4, 6, 6, 6]), None, torch.bool, window=window)
    assert torch.equal(full, build_attention_mask([0, 4, 6], 6, torch.bool, window=window))


def test_torch_varlen_and_megatron_get_the_same_closed_offsets():
    batch = static()
    expected = [0, 5, 8, 15, 19, 19, 19, 19]
    for arguments in (batch.for_torch_varlen(), batch.for_megatron(), batch.for_hf_flash()):
        offsets = [value for name, value in arguments.items() if name.startswith("cu_seq")]
        assert [value.tolist() for value in offsets] == [expected, expected]
    assert batch.for_hf_flash()["seq_idx"].tolist() == [[0] * 5 + [1] * 3 + [2] * 7 + [3] * 4]


def test_a_compiled_graph_is_made_once_for_batches_of_different_documents():
    seen = []

    def backend(graph, inputs):
        seen.append([tuple(value.shape) for value in inputs if isinstance(value, torch.Tensor)])
        return graph.forward

    @torch.compile(backend=backend)
    def work(ids, offsets):
        return ids.sum() + offsets.diff().float().square().sum()

    for lengths in ([1, 2], [4], [2, 2, 2, 3], []):
        batch = static([[5] * n for n in lengths])
        expected = batch.input_ids.sum() + sum((b - a) ** 2 for a, b in pairwise(batch.cu_seqlens.tolist()))
        assert work(batch.input_ids, batch.cu_seqlens) == expected
    assert len(seen) == 1
