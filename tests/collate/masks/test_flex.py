"""Block masks built from boundaries equal those found by evaluating every cell."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from raypack.collate import PackedBatch, build_attention_mask
from raypack.collate.masks.flex import mask_mod


def evaluated(segments, window):
    rows, length = segments.shape
    rule = mask_mod(segments, window)
    return create_block_mask(rule, rows, None, length, length, device="cpu")


def same_blocks(ours, theirs):
    for name in ("kv", "full_kv", "q", "full_q"):
        counts, columns = f"{name}_num_blocks", f"{name}_indices"
        a, b = getattr(ours, counts), getattr(theirs, counts)
        assert torch.equal(a, b), name
        listed = torch.arange(a.max().item()) < a[..., None]
        width = listed.shape[-1]
        mine, found = getattr(ours, columns)[..., :width], getattr(theirs, columns)[..., :width]
        assert torch.equal(torch.where(listed, mine, -1), torch.where(listed, found, -1)), name


@pytest.mark.parametrize("window", [None, 1, 100, 128, 129, 300])
@pytest.mark.parametrize(
    "lengths", [[1024], [128] * 8, [300, 1, 200, 127, 128, 129], [5] * 100, [640, 3], [1], []]
)
@pytest.mark.parametrize("padding", [0, 77, 300])
def test_blocks_are_those_that_evaluation_finds(lengths, padding, window):
    documents = [list(range(1, n + 1)) for n in lengths]
    total = max(sum(lengths) + padding, 1)
    batch = PackedBatch.from_documents(documents, pad_to=total)
    ours = batch.for_flex(window=window)["block_mask"]
    assert ours.shape == (1, 1, total, total)
    same_blocks(ours, evaluated(batch.segment_ids, window))


@pytest.mark.parametrize("side", ["right", "left"])
def test_padded_rows_have_their_own_blocks(side):
    documents = [list(range(1, n + 1)) for n in (500, 130, 7)]
    batch = PackedBatch.from_documents(documents, layout="padded", padding_side=side)
    same_blocks(batch.for_flex()["block_mask"], evaluated(batch.segment_ids, None))


def test_attention_through_the_block_mask_equals_the_dense_mask():
    window = 40
    torch.manual_seed(0)
    lengths = [150, 3, 97, 60]
    batch = PackedBatch.from_documents([[1] * n for n in lengths], pad_to=330)
    q, k, v = torch.randn(3, 1, 2, 330, 16).unbind()
    out = torch.compile(flex_attention)(q, k, v, **batch.for_flex(window=window))
    mask = build_attention_mask(batch.cu_seqlens, 330, torch.bool, window=window)
    dense = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    wider = scaled_dot_product_attention(q, k, v, is_causal=True)
    apart = (out[:, :, :310] - dense[:, :, :310]).abs().max()
    assert apart < 1e-3 < 0.1 < (wider[:, :, :310] - dense[:, :, :310]).abs().max()
    assert np.isfinite(out.numpy()).all()
