"""The planner: plans for the ranks of a node (or for one process), paced by credit.

The actor knows what is *planned*; the train loops report what is committed. A reader asks for a block
of micro-batches and waits until the block lies within ``ahead`` of what its rank has committed. Every
call is idempotent: blocks are addressed by number and commits are absolute, so the actor may die and
restart from its constructor's arguments, and the train loops report to it again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray

from raypack.actors.grace_exit import exit_after_grace
from raypack.batching.rank.state import TokenBatchState
from raypack.batching.sequence.global_steps import GlobalSteps
from raypack.batching.sequence.plan_block import PlanBlock
from raypack.batching.sequence.plan_buffer import PlanBuffer
from raypack.batching.sequence.planned_step import StepSource
from raypack.batching.sequence.rank_steps import RankSteps
from raypack.batching.steps.assignment import AttentionCost
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.state import StepPlannerState
from raypack.batching.steps.step import StepCursor
from raypack.batching.warm import in_background, warm_planning
from raypack.source import ArrowSource, open_source

PATIENCE_S = 5.0
"""How long a reader's request waits for credit before the reader must ask again, seconds."""


@dataclass(frozen=True, slots=True)
class PlannerSpec:
    """Constructor arguments of a planner; small, because Ray sends them at every restart of the actor."""

    source_path: str
    state: StepPlannerState | TokenBatchState
    """Where the attempt begins, micro-batch 0: of all ranks (global deal), or of one data rank (by rank)."""
    world_size: int
    """Data ranks."""
    epochs: int
    ahead: int
    """Micro-batches that a rank's reader may be ahead of what the rank has committed."""
    local_world_size: int
    """Processes that use this actor; it exits when all of them have left."""
    attention_cost: AttentionCost = field(default_factory=AttentionCost)
    """Weights of the balance over ranks, under the global deal."""
    micros: int = 1
    """Micro-batches of a step on each rank, under the rank deal."""
    steps: int = 0
    """Steps of the epoch before the state, under the rank deal."""
    data_ranks: tuple[int, ...] | None = None
    """The data rank of each process; None where each process is a data rank."""


def _warm(state: StepPlannerState | TokenBatchState) -> None:
    """Load the kernels that plan from a state, and compile those that are not cached."""
    if isinstance(state, TokenBatchState):
        warm_planning(state.options, packing="greedy", shuffle=state.sampler.shuffle)
    else:
        warm_planning(state.options, packing=state.packing, shuffle=state.shuffle)


def _steps_of(spec: PlannerSpec, source: ArrowSource) -> StepSource:
    if isinstance(spec.state, TokenBatchState):
        return RankSteps(
            spec.state,
            source.lengths,
            source.supervised,
            micros=spec.micros,
            steps=spec.steps,
            epochs=spec.epochs,
        )
    planner = StepPlanner.from_state(spec.state, source.lengths, spec.state.options, source.supervised)
    return GlobalSteps(
        planner,
        world_size=spec.world_size,
        epochs=spec.epochs,
        attention_cost=spec.attention_cost,
    )


@dataclass(slots=True)
class _Rank:
    """Credit of one process: peers of one data rank read, commit and leave independently."""

    committed: int = 0
    granted: int = 0
    """The end of the furthest block granted."""
    end: tuple[int, StepCursor] | None = None
    """Epoch and boundary where ``committed`` ends."""
    asked: int = 0
    """Requests of the rank's reader; 0 means that no reader ever ran."""
    straggler_plans: PlanBuffer | None = None
    """A plan buffer of its own, where the node's dropped plans before this rank first asked."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class NodePlanner:
    """Answers the readers of one node; run as an async Ray actor, see `start_planner`."""

    def __init__(self, spec: PlannerSpec) -> None:
        self._spec = spec
        self._ahead = spec.ahead
        self._local_world_size = spec.local_world_size
        self._left: set[int] = set()
        in_background(partial(_warm, spec.state))  # while the readers start and the model is built
        self._source = open_source(spec.source_path)
        self._plans = self._from_start()
        self._ranks: dict[int, _Rank] = {}

    def _from_start(self) -> PlanBuffer:
        return PlanBuffer(_steps_of(self._spec, self._source))

    def _rank(self, rank: int) -> _Rank:
        return self._ranks.setdefault(rank, _Rank())

    async def grant(self, rank: int, first: int, count: int) -> PlanBlock | None:
        """Return a block's plans once the credit covers it, or None where it does not within 5 s.

        Args:
            rank: The process that asks; it gets the plans of its data rank.
            first: Number of the block's first micro-batch.
            count: Its micro-batches; the block is shorter at the end of the run.
        """
        credit = self._rank(rank)
        credit.asked += 1
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while first + count > credit.committed + self._ahead and rank not in self._left:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return None
            credit.moved.clear()
            try:
                await asyncio.wait_for(credit.moved.wait(), left)
            except asyncio.TimeoutError:
                return None
        data_rank = rank if self._spec.data_ranks is None else self._spec.data_ranks[rank]
        if rank in self._left:
            return self._plans.block(data_rank, first, 0)
        block = self._plans_for(credit, first).block(data_rank, first, count)
        credit.granted = max(credit.granted, first + len(block))
        return block

    def _plans_for(self, credit: _Rank, first: int) -> PlanBuffer:
        """Return plans that still hold what the rank needs from ``first`` on.

        Where ranks do not step together, one may be far ahead before this actor, or the one that it
        replaces, hears of another. What was dropped is then planned again from where the other stands.
        """
        if self._plans.floor <= max(first, credit.committed):
            credit.straggler_plans = None
            return self._plans
        if credit.straggler_plans is None:
            credit.straggler_plans = self._from_start()
            if credit.end is not None:
                credit.straggler_plans.move_to(credit.committed, *credit.end)
        return credit.straggler_plans

    async def advance(self, rank: int, committed: int, epoch: int, cursor: StepCursor) -> None:
        """Record that a rank has committed all micro-batches below ``committed``, up to ``cursor``.

        Absolute, so a call that comes twice or late changes nothing.
        """
        credit = self._rank(rank)
        if committed > credit.committed:
            credit.committed, credit.end = committed, (epoch, cursor)
            credit.moved.set()
            if credit.straggler_plans is not None:
                credit.straggler_plans.move_to(committed, epoch, cursor)
        staying = [other.committed for r, other in self._ranks.items() if r not in self._left]
        if min(staying, default=committed) == committed:
            self._plans.move_to(committed, epoch, cursor)

    async def status(self, rank: int) -> dict[str, int]:
        """Return a rank's numbers: micro-batches committed and granted, requests made."""
        credit = self._rank(rank)
        return {"committed": credit.committed, "granted": credit.granted, "asked": credit.asked}

    async def leave(self, rank: int) -> None:
        """Record that a rank needs no more; its reader's next request learns that the run has ended.

        The actor ends with the last rank of its node.
        """
        self._left.add(rank)
        self._rank(rank).moved.set()
        if len(self._left) == self._local_world_size:
            self._ending = asyncio.create_task(exit_after_grace())


_kept: list[Any] = []
"""Handles of the actors that this process started: Ray ends an actor once its original handles are gone,
even if others still call it by name."""


def planner_options(name: str, node_id: str) -> dict[str, Any]:
    """Return the Ray options of a node planner.

    It takes no CPU, stays on its ranks' node, is found again by its name, and begins again from its
    constructor's arguments when it is killed; a call in flight is then put again.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {
        "name": name,
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": 1000,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
    }


def start_planner(spec: PlannerSpec, *, name: str, node_id: str) -> Any:
    """Start the node's planner, or find the one that a peer on this node has started."""
    handle = ray.remote(NodePlanner).options(**planner_options(name, node_id)).remote(spec)
    _kept.append(handle)
    return handle
