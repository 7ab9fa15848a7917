"""raypack: elastic, token-budgeted, packed data loading for LLM training on Ray.

Names are imported when they are first used, so that ``import raypack`` costs nothing and the
numpy core works where Ray and torch are absent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from raypack.version import __version__

if TYPE_CHECKING:
    from raypack.audit import verify as verify
    from raypack.batching import ConsolidatedTokenBatchState as ConsolidatedTokenBatchState
    from raypack.batching import LengthTable as LengthTable
    from raypack.batching import StatefulTokenBatchSampler as StatefulTokenBatchSampler
    from raypack.batching import StepPlan as StepPlan
    from raypack.batching import StepPlanner as StepPlanner
    from raypack.batching import TokenBatch as TokenBatch
    from raypack.batching import TokenBatchLayout as TokenBatchLayout
    from raypack.batching import TokenBatchOptions as TokenBatchOptions
    from raypack.batching import TokenBatchPlan as TokenBatchPlan
    from raypack.batching import TokenBatchState as TokenBatchState
    from raypack.collate import PackedBatch as PackedBatch
    from raypack.collate import assert_isolated as assert_isolated
    from raypack.collate import build_attention_mask as build_attention_mask
    from raypack.collate import pick_attention as pick_attention
    from raypack.data import DeviceCollate as DeviceCollate
    from raypack.data import prepare as prepare
    from raypack.errors import BatchError as BatchError
    from raypack.errors import CheckpointError as CheckpointError
    from raypack.errors import DoctorError as DoctorError
    from raypack.errors import IsolationError as IsolationError
    from raypack.errors import LoaderError as LoaderError
    from raypack.errors import PrepareError as PrepareError
    from raypack.errors import RaypackError as RaypackError
    from raypack.errors import ResourceError as ResourceError
    from raypack.errors import SamplerError as SamplerError
    from raypack.errors import SourceError as SourceError
    from raypack.errors import StreamError as StreamError
    from raypack.packing import build_4d_attention_mask as build_4d_attention_mask
    from raypack.packing import build_cross_doc_mask as build_cross_doc_mask
    from raypack.packing import select_packing_strategy as select_packing_strategy
    from raypack.packing import tag_sub_sequences as tag_sub_sequences
    from raypack.sampling import ConsolidatedSamplerState as ConsolidatedSamplerState
    from raypack.sampling import SamplerState as SamplerState
    from raypack.sampling import StatefulShardSampler as StatefulShardSampler
    from raypack.source import ArrowSource as ArrowSource
    from raypack.source import index_source as index_source
    from raypack.source import open_source as open_source
    from raypack.source import write_source as write_source
    from raypack.train import PackedData as PackedData
    from raypack.train import RaypackCallback as RaypackCallback
    from raypack.train import get_evaluation as get_evaluation
    from raypack.train import get_loader as get_loader
    from raypack.train import report as report

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
        "BatchError",
        "IsolationError",
        "DoctorError",
    ),
    "raypack.sampling": (
        "StatefulShardSampler",
        "SamplerState",
        "ConsolidatedSamplerState",
    ),
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
    "raypack.source": (
        "ArrowSource",
        "index_source",
        "open_source",
        "write_source",
    ),
    "raypack.collate": (
        "PackedBatch",
        "build_attention_mask",
        "pick_attention",
        "assert_isolated",
    ),
    "raypack.data": (
        "DeviceCollate",
        "prepare",
    ),
    "raypack.audit": ("verify",),
    "raypack.train": (
        "PackedData",
        "RaypackCallback",
        "get_evaluation",
        "get_loader",
        "report",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_FOLDERS = frozenset(module.removeprefix("raypack.") for module in _HOME)

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    """Import a public name from its home, or a folder of the package, once."""
    if name in _FOLDERS:
        return importlib.import_module(f"raypack.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'raypack' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names and folders."""
    return sorted({*__all__, *_FOLDERS})
