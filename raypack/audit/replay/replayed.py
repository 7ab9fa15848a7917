"""A run's epochs planned again under either deal, and their end compared with the checkpoint's position."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from raypack.audit.replay.global_replay import Replay, replay_global
from raypack.audit.replay.rank_replay import begun, replay_ranks
from raypack.audit.replay.stretches import Stretch
from raypack.batching.rank.consolidated import ConsolidatedTokenBatchState
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.state import StepPlannerState
from raypack.checkpoint.ledger import Attempt
from raypack.checkpoint.rank_plan import RankPlan
from raypack.checkpoint.run_state import RunState
from raypack.errors import CheckpointError
from raypack.source import ArrowSource


class GlobalReplay:
    """Replays under the global deal: one planner for all ranks.

    Args:
        state: The state to audit, checked against the source.
        source: Its source.
    """

    def __init__(self, state: RunState, source: ArrowSource) -> None:
        recorded = state.plan
        if not isinstance(recorded, StepPlannerState):
            raise CheckpointError(f"the global deal needs a planner's state, got {type(recorded).__name__}")
        self._recorded = recorded
        self._steps = 0
        attempts = state.ledger.attempts
        self._planner = StepPlanner(
            recorded.source_id,
            source.lengths,
            attempts[0].options if attempts else recorded.options,
            batches_per_step=1,
            packing=recorded.packing,
            window=recorded.window,
            seed=recorded.seed,
            supervised=source.supervised,
            shuffle=recorded.shuffle,
        )

    def replay(self, epoch: int, stretches: list[Stretch], replay: Replay) -> None:
        """Plan the steps of the next epoch."""
        if epoch != self._planner.epoch:
            self._planner.start_epoch(epoch)
        replay_global(self._planner, stretches, replay)
        self._steps = replay.steps

    def difference(self) -> str:
        """Say how the recorded plan differs from where its ledger's steps end; empty where it does not."""
        planner, recorded = self._planner, self._recorded
        if recorded.epoch != planner.epoch:
            planner.start_epoch(recorded.epoch)
            self._steps = 0
        if recorded.options != planner.options:
            planner.change(options=recorded.options)
        state = planner.state()
        state = replace(
            state,
            batches_per_step=recorded.batches_per_step,
            cursor=replace(state.cursor, steps=self._steps),
        )
        return _differences(state, recorded)


class RankReplay:
    """Replays under the rank deal: a sampler for each rank.

    Args:
        state: The state to audit, checked against the source.
        source: Its source.
    """

    def __init__(self, state: RunState, source: ArrowSource) -> None:
        recorded = state.plan
        if not isinstance(recorded, RankPlan):
            raise CheckpointError(f"the rank deal needs the ranks' records, got {type(recorded).__name__}")
        self._recorded, self._lengths = recorded, source.lengths
        self._remaining: ConsolidatedTokenBatchState | None = None

    def replay(self, epoch: int, stretches: list[Stretch], replay: Replay) -> None:
        """Plan the steps of the next epoch."""
        self._remaining = replay_ranks(self._recorded, self._lengths, epoch, stretches, replay)

    def difference(self) -> str:
        """Say how the ranks' records differ from where their ledger's steps end; empty where they do not."""
        recorded, remaining = self._recorded, self._remaining
        if remaining is None or remaining.sampler.epoch != recorded.epoch:
            alone = Attempt(
                number=0,
                world_size=1,
                first_step=0,
                steps=0,
                batches_per_step=1,
                options=recorded.options,
            )
            samplers = begun(recorded, self._lengths, recorded.epoch, alone)
            remaining = ConsolidatedTokenBatchState.consolidate(sampler.state() for sampler in samplers)
        remaining = replace(remaining, options=recorded.options)
        if remaining == recorded.consolidated:
            return ""
        said = _differences(remaining.sampler, recorded.consolidated.sampler)
        return f"what the ranks' records leave is not what its steps leave: {said}"


def _differences(replayed: Any, recorded: Any) -> str:
    """Name the fields in which a recorded state is another one than its replay ends in."""
    lines = []
    for field in fields(replayed):
        ours, theirs = getattr(replayed, field.name), getattr(recorded, field.name)
        if field.name == "head":
            if not np.array_equal(ours, theirs):
                lines.append("other positions of the head")
        elif ours != theirs:
            lines.append(f"{field.name} {ours}, the checkpoint has {theirs}")
    return f"its steps end at {'; '.join(lines)}" if lines else ""
