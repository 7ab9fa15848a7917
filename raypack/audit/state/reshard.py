"""Previews what each of N data ranks would get from a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from raypack.arguments import integer
from raypack.audit.recorded_source import Path
from raypack.audit.state.find import LocatedCheckpoint, find, named, reach
from raypack.audit.state.remaining import rank_steps
from raypack.audit.state.reshard_proof import Proof, prove, stretches
from raypack.audit.state.write import check_target, write_reshard
from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.batching.rank.state import TokenBatchState
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.state import StepPlannerState
from raypack.checkpoint.idle import idle_share, next_good
from raypack.checkpoint.rank_plan import RankPlan
from raypack.checkpoint.run_state import RunState
from raypack.errors import CheckpointError
from raypack.sampling.sampler import StatefulShardSampler
from raypack.source import ArrowSource

MOST_RANKS = 1 << 16
MOST_WITHOUT_SOURCE = 1 << 26
"""The most examples to deal one by one when only the checkpoint vouches for their number."""
STEPS_LOOKED_AT = 16
MOST_BATCHES_LOOKED_AT = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one rank gets of the epoch."""

    rank: int
    examples: int
    batches: int | None
    """None where the source is not readable; so are the tokens."""
    tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalShares:
    """How a step of the global deal divides among ranks."""

    batches_per_step: int
    micro_batches: int
    """Micro-batches of a rank in a full step."""
    idle: float
    """Part of these that are empty, over all ranks."""
    next_good: int
    """The next number of batches a step that leaves at most 5 % of them empty."""
    imbalance: tuple[float, ...]
    """Greatest attention cost of a rank over the mean of all, of the next steps; empty without a source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """The outcome of `reshard`."""

    checkpoint: str
    name: str | None
    deal: str
    step: int
    epoch: int
    was: int
    """Data ranks that the checkpoint was saved on."""
    world_size: int
    """Data ranks that it is dealt to here."""
    source_fault: str
    """Why the source cannot be read; empty where it can."""
    shares: tuple[Share, ...] = ()
    """Under the rank deal, what each rank gets."""
    steps: int | None = None
    """Under the rank deal, the steps that are left on so many ranks; None without a source."""
    proof: Proof | None = None
    """Under the rank deal, that the shares are what was left."""
    deals: GlobalShares | None = None
    """Under the global deal, how steps divide."""
    written: str = ""
    """Where the new state was written; empty where nothing was."""

    @property
    def ok(self) -> bool:
        """True when all that was left is dealt, each example once."""
        return self.proof is None or self.proof.ok

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        return {**asdict(self), "ok": self.ok}


def reshard(
    run: Path,
    world_size: int,
    *,
    name: str | None = None,
    source: Path | None = None,
    out: Path | None = None,
) -> Reshard:
    """Return what each of ``world_size`` ranks would get from a checkpoint; Ray is not started.

    Args:
        run: ``<storage_path>/<run name>``, or one checkpoint of it; a path or URI.
        world_size: Data ranks, any number.
        name: The loader's name, for checkpoints with several.
        source: Where the source lies now; None is where the run found it. Without it there are no
            batches and tokens, but the proof needs none.
        out: A local directory to write the new ranks' state into, under the rank deal; its
            ``raypack/`` folder, or the loader's in it, must not exist yet.

    Raises:
        CheckpointError: There is no checkpoint, a file of it is damaged, or ``out`` cannot be written.
    """
    world_size = integer("world_size", world_size, minimum=1, maximum=MOST_RANKS, error=CheckpointError)
    found = find(run)
    with named(found):
        return _resharded(found, world_size, found.pick(name), source, out)


def _resharded(
    found: LocatedCheckpoint, world_size: int, name: str | None, source: Path | None, out: Path | None
) -> Reshard:
    """Deal a checkpoint that was found; see `reshard`."""
    reached = reach(found, name, source)
    state, records, opened = reached.state, reached.records, reached.source
    result = Reshard(
        checkpoint=found.path,
        name=name,
        deal=state.deal,
        step=state.step,
        epoch=state.plan.epoch,
        was=state.world_size,
        world_size=world_size,
        source_fault=reached.fault,
    )
    if not isinstance(state.plan, RankPlan) or records is None:
        return replace(result, deals=_deals(state, opened, world_size))
    left = state.plan.consolidated.sampler.remaining
    if opened is None and left > MOST_WITHOUT_SOURCE:
        raise CheckpointError(
            f"{found.path}: {left} examples are left, more than the {MOST_WITHOUT_SOURCE} that are dealt "
            f"without their source; give it as the source (--source). It is {reached.fault}"
        )
    if out is not None:
        check_target(out, name)
    dealt = _dealt(state.plan, world_size)
    shares = tuple(_share(record, opened) for record in dealt)
    proof = prove((r.sampler for r in records), (r.sampler for r in dealt))
    counts = [share.batches for share in shares if share.batches is not None]
    steps = rank_steps(counts, state.plan.batches_per_step) if counts else None
    result = replace(result, shares=shares, proof=proof, steps=steps)
    if out is None or not proof.ok:
        return result
    return replace(result, written=write_reshard(out, name, state, dealt))


def _dealt(plan: RankPlan, world_size: int) -> list[TokenBatchState]:
    left = plan.consolidated
    return [
        TokenBatchState(
            sampler=StatefulShardSampler.reshard(left.sampler, rank, world_size).state(),
            lengths_digest=left.lengths_digest,
            options=left.options,
        )
        for rank in range(world_size)
    ]


def _share(record: TokenBatchState, source: ArrowSource | None) -> Share:
    sampler = record.sampler
    examples = sampler.scope.shard_size - sampler.committed
    if source is None:
        return Share(rank=sampler.rank, examples=examples, batches=None, tokens=None)
    lengths = source.lengths
    tokens = sum(int(np.sum(lengths.array[part], dtype=np.int64)) for part in stretches(sampler))
    batches = StatefulTokenBatchSampler.from_state(record, lengths).remaining_batches()
    return Share(rank=sampler.rank, examples=examples, batches=batches, tokens=tokens)


def _deals(state: RunState, source: ArrowSource | None, world_size: int) -> GlobalShares:
    plan = state.plan
    imbalance: tuple[float, ...] = ()
    if source is not None and isinstance(plan, StepPlannerState):
        planner = StepPlanner.from_state(plan, source.lengths, plan.options)
        steps = planner.steps(0, min(STEPS_LOOKED_AT, MOST_BATCHES_LOOKED_AT // plan.batches_per_step))
        imbalance = tuple(step.dealt(world_size).imbalance for step in steps)
    return GlobalShares(
        batches_per_step=plan.batches_per_step,
        micro_batches=-(-plan.batches_per_step // world_size),
        idle=idle_share(plan.batches_per_step, world_size),
        next_good=next_good(plan.batches_per_step, world_size),
        imbalance=imbalance,
    )
