"""Which way packed documents are kept apart where nothing but flash attention is asked about."""

from __future__ import annotations

from typing import Literal

from raypack.arguments import flag

PackingStrategy = Literal["varlen", "4d_mask"]


def select_packing_strategy(*, flash_attn_available: bool) -> PackingStrategy:
    """Choose offsets for a varlen kernel where there is one, a dense mask elsewhere.

    Offsets cost four bytes a document, a mask S² cells. To choose for a given model and device, with
    reasons, see `raypack.collate.pick_attention`.

    Raises:
        TypeError: the flag is no Python bool.
    """
    return "varlen" if flag("flash_attn_available", flash_attn_available) else "4d_mask"
