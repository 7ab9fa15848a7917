"""The start of an attempt, for each deal: this rank's part, and the arguments of its planner."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from raypack.actors.planner import PlannerSpec
from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.state import StepPlannerState
from raypack.checkpoint.idle import warn_of_idle
from raypack.checkpoint.rank_plan import RankPlan
from raypack.checkpoint.run_state import RunState
from raypack.sampling.sampler import StatefulShardSampler
from raypack.source import ArrowSource
from raypack.train.deals.deal import Deal
from raypack.train.deals.global_deal import GlobalDeal
from raypack.train.deals.rank_deal import AllReduce, RankDeal, add_up, dedupe_peers
from raypack.train.elastic.process_group import require_group
from raypack.train.elastic.worker_context import WorkerContext
from raypack.train.recipe import Pace, PackedData

Start = tuple[Deal, PlannerSpec, Pace]


def global_start(
    recipe: PackedData,
    source: ArrowSource,
    worker: WorkerContext,
    restored: RunState | None,
    device: torch.device,
) -> Start:
    """Begin under the global deal: one state for all ranks, one planner a node."""
    if restored is not None and isinstance(restored.plan, StepPlannerState):
        plan = restored.plan
        planner = StepPlanner.from_state(plan, source.lengths, plan.options, source.supervised)
        planner.change(options=recipe.options, batches_per_step=recipe.step_batches)
    else:
        planner = StepPlanner(
            source.fingerprint,
            source.lengths,
            recipe.options,
            batches_per_step=recipe.step_batches or worker.largest_data_world,
            packing=recipe.packing_kind,
            window=recipe.window,
            seed=recipe.seed,
            supervised=source.supervised,
            shuffle=recipe.order_of(source),
        )
    if worker.rank == 0:
        warn_of_idle(planner.batches_per_step, worker.data_world_size)
    pace = recipe.pace(-(-planner.batches_per_step // worker.data_world_size))
    spec = PlannerSpec(
        source_path=recipe.source_path,
        state=planner.state(),
        world_size=worker.data_world_size,
        epochs=recipe.epochs,
        ahead=pace.ahead,
        local_world_size=worker.local_world_size,
        attention_cost=recipe.cost,
        data_ranks=worker.data_ranks,
    )
    return GlobalDeal(planner, recipe.epochs), spec, pace


def rank_start(
    recipe: PackedData,
    source: ArrowSource,
    worker: WorkerContext,
    restored: RunState | None,
    device: torch.device,
) -> Start:
    """Begin under the rank deal: a sampler and a state for each data rank, a planner for each process.

    Plans are a pure function of the state, so the planners of peers, wherever they run, give the same.
    """
    plan = restored.plan if restored is not None and isinstance(restored.plan, RankPlan) else None
    sampler = rank_sampler(recipe, source, plan, worker.data_rank, worker.data_world_size)
    batches = recipe.step_batches or (plan.batches_per_step if plan else worker.largest_data_world)
    micros = -(-batches // worker.data_world_size)
    steps = plan.steps if plan else 0
    pace = recipe.pace(micros)
    spec = PlannerSpec(
        source_path=recipe.source_path,
        state=sampler.state(),
        world_size=worker.data_world_size,
        epochs=recipe.epochs,
        ahead=pace.ahead,
        local_world_size=1,
        micros=micros,
        steps=steps,
        data_ranks=worker.data_ranks,
    )
    deal = RankDeal(
        sampler,
        micros=micros,
        batches_per_step=batches,
        steps=steps,
        epochs=recipe.epochs,
        agree=_agreement(worker, device),
    )
    return deal, spec, pace


def rank_sampler(
    recipe: PackedData, source: ArrowSource, plan: RankPlan | None, rank: int, world_size: int
) -> StatefulTokenBatchSampler:
    """Return a data rank's sampler: a fresh shard, or its part of what a plan has left."""
    if plan is not None:
        remaining = replace(plan.consolidated, options=recipe.options)
        return StatefulTokenBatchSampler.reshard(remaining, rank, world_size, source.lengths)
    shard = StatefulShardSampler(
        source.fingerprint,
        len(source),
        rank=rank,
        world_size=world_size,
        seed=recipe.seed,
        shuffle=recipe.order_of(source),
    )
    return StatefulTokenBatchSampler(shard, source.lengths, recipe.options)


def _agreement(worker: WorkerContext, device: torch.device) -> AllReduce:
    if worker.data_world_size == 1:  # peers know the same, and there are no others
        return lambda values: values
    require_group(worker.world_size, "deal='rank'")
    return dedupe_peers(partial(add_up, device=device), is_first_peer=worker.is_first_peer)
