"""Where documents end inside a packed row: ids, positions, label edges and reference masks."""

from raypack.packing.masks import build_4d_attention_mask, build_cross_doc_mask
from raypack.packing.segments import (
    document_offsets,
    ignore_label_edges,
    position_ids,
    segment_ids,
    tag_sub_sequences,
)
from raypack.packing.strategy import PackingStrategy, select_packing_strategy

__all__ = [
    "PackingStrategy",
    "build_4d_attention_mask",
    "build_cross_doc_mask",
    "document_offsets",
    "ignore_label_edges",
    "position_ids",
    "segment_ids",
    "select_packing_strategy",
    "tag_sub_sequences",
]
