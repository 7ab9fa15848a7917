"""How many examples fit: token budgets, batches, and the optimizer steps that are dealt to ranks."""

from raypack.batching.consolidated import ConsolidatedTokenBatchState
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.plan import TokenBatch, TokenBatchPlan
from raypack.batching.sampler import StatefulTokenBatchSampler
from raypack.batching.state import TokenBatchState
from raypack.batching.step_plan import StepPlan
from raypack.batching.step_planner import StepPlanner

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
