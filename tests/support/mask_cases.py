"""Random masks for the tests of their cells and of how they are written."""

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from raypack.collate import build_attention_mask
from raypack.collate.masks import host_raster

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
KINDS = ["causal", "bidirectional", "prefix"]


def ids_of(lengths, padding):
    ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return np.concatenate([ids, np.zeros(padding, dtype=ids.dtype)])[None]


masks = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(1, 9), max_size=5),
        "padding": st.integers(0, 4),
        "kind": st.sampled_from(KINDS),
        "window": st.none() | st.integers(1, 6),
        "pad_rows": st.sampled_from(["blocked", "self"]),
        "seed": st.integers(0, 9),
        "narrow": st.integers(1, 9),
    }
)


def built(case, *arguments, **options):
    """Build a mask of which rows past ``case["narrow"]`` keys are wide: in both ways of painting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_raster, "NARROW", case["narrow"])
        return build_attention_mask(*arguments, **options)
