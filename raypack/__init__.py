"""raypack: elastic, token-budgeted, packed data loading for LLM training on Ray.

Names are imported when they are first used, so that ``import raypack`` costs nothing and the
numpy core works where Ray and torch are absent.
"""

from __future__ import annotations

import importlib
from typing import Any

from raypack.version import __version__

_HOME = {
    "raypack.errors": (
        "RaypackError",
        "SamplerError",
        "SourceError",
        "PrepareError",
        "CheckpointError",
        "LoaderError",
        "ResourceError",
        "StreamError",
    ),
    "raypack.sampling": ("StatefulShardSampler", "SamplerState", "ConsolidatedSamplerState"),
    "raypack.batching": (
        "LengthTable",
        "TokenBatchLayout",
        "TokenBatchOptions",
        "TokenBatchPlan",
        "TokenBatch",
        "TokenBatchState",
        "ConsolidatedTokenBatchState",
        "StatefulTokenBatchSampler",
        "StepPlanner",
        "StepPlan",
    ),
    "raypack.packing": (
        "tag_sub_sequences",
        "build_4d_attention_mask",
        "build_cross_doc_mask",
        "select_packing_strategy",
    ),
    "raypack.source": ("ArrowSource", "index_source", "open_source", "write_source"),
    "raypack.collate": ("PackedBatch", "build_attention_mask", "pick_attention", "assert_isolated"),
    "raypack.data": ("DeviceCollate", "prepare"),
    "raypack.audit": ("verify",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    """Import a public name from its home, once."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'raypack' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
