"""How many examples fit: token budgets, batches, and the optimizer steps that are dealt to ranks."""

from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.plan import TokenBatch, TokenBatchPlan
from raypack.batching.rank.consolidated import ConsolidatedTokenBatchState
from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.batching.rank.state import TokenBatchState
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.step import StepPlan

__all__ = [
    "ConsolidatedTokenBatchState",
    "LengthTable",
    "StatefulTokenBatchSampler",
    "StepPlan",
    "StepPlanner",
    "TokenBatch",
    "TokenBatchLayout",
    "TokenBatchOptions",
    "TokenBatchPlan",
    "TokenBatchState",
]
