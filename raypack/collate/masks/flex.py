"""Block masks of packed documents, built from their boundaries a block at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.nn.attention.flex_attention import BlockMask

from raypack.collate.masks.intervals import Runs, runs_of_segments

BLOCK = 128

MaskMod: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def block_mask(segment_ids: torch.Tensor, window: int | None = None) -> BlockMask:
    """Build the block mask of causal attention inside documents.

    A query block sees one stretch of key blocks, so two divisions a block say which are seen and which
    are seen whole; nothing is evaluated cell by cell. Padding is a segment of its own, so that none of
    its rows sees nothing.

    Args:
        segment_ids: (B, S) ids, each one run in its row.
        window: a query sees this many keys, itself included; None: all.

    Returns:
        A block mask of shape (B, 1, S, S), with the same blocks as `create_block_mask` finds.
    """
    length = segment_ids.shape[1]
    first, whole, own = _stretches(runs_of_segments(segment_ids), window)
    blocks = own.shape[0]
    column = torch.arange(blocks, device=segment_ids.device)
    ragged = (whole - first)[..., None]
    partial = torch.where(column < ragged, first[..., None] + column, own[:, None])
    full = whole[..., None] + column
    return BlockMask.from_kv_blocks(
        kv_num_blocks=_counts(ragged[..., 0] + 1),
        kv_indices=_columns(partial, blocks),
        full_kv_num_blocks=_counts(own - whole),
        full_kv_indices=_columns(full, blocks),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod(segment_ids, window),
        seq_lengths=(length, length),
    )


def mask_mod(segment_ids: torch.Tensor, window: int | None) -> MaskMod:
    """Return the rule inside a block: same document, not later, inside the window."""

    def same_document(
        row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        seen = (segment_ids[row, query] == segment_ids[row, key]) & (query >= key)
        return seen if window is None else seen & (query - key < window)

    return same_document


def _stretches(runs: Runs, window: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tell each query block its first key block, its first whole one, and its own number.

    Returns:
        (B, blocks), (B, blocks) and (blocks,) int64. Blocks from the first whole one up to the query's
        own are seen whole; the own one never is.
    """
    length = runs.ids.shape[1]
    own = torch.arange(-(-length // BLOCK), device=runs.ids.device)
    heads, lasts = own * BLOCK, (own * BLOCK + BLOCK - 1).clamp(max=length - 1)
    nearest, farthest = runs.starts[:, lasts], runs.starts[:, heads]
    if window is not None:
        nearest, farthest = nearest.maximum(lasts - (window - 1)), farthest.maximum(heads - (window - 1))
    whole = torch.minimum((nearest + BLOCK - 1) // BLOCK, own)
    whole = torch.where(heads + BLOCK > length, own, whole)
    return farthest // BLOCK, whole, own


def _counts(values: torch.Tensor) -> torch.Tensor:
    return values[:, None].to(torch.int32)


def _columns(values: torch.Tensor, blocks: int) -> torch.Tensor:
    return values.clamp_(max=blocks - 1)[:, None].to(torch.int32)
