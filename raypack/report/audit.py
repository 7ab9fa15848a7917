"""The audit: from one checkpoint and the source, that every example was trained exactly once.

The ledger says how many steps of each epoch the weights have seen; the plan of those steps follows
from the recorded state alone. The receipt says what the train loops really received and committed.
They must agree, and the plan must hold no example twice, and all of them where the epoch is done.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raypack.batching.step_planner import StepPlanner
from raypack.batching.step_state import StepPlannerState
from raypack.errors import CheckpointError, RaypackError, SourceError
from raypack.report.locate import last_checkpoint, open_path
from raypack.report.replay import Replay, explain, replay_global
from raypack.report.replay_ranks import replay_ranks
from raypack.sampling.receipt import receipt_key
from raypack.source import ArrowSource, describe_change, open_source
from raypack.train.checkpoint_reading import read_state
from raypack.train.ledger import Attempt, EpochEntry, Refused
from raypack.train.rank_plan import RankPlan
from raypack.train.run_state import RunState


@dataclass(frozen=True, slots=True)
class EpochAudit:
    """What the audit found of one epoch."""

    epoch: int
    steps: int
    trained: int
    """Examples that the receipts count."""
    examples: int
    """Examples of the source."""
    tokens: int
    """Tokens that the receipts count."""
    refused: Refused
    """Steps that were begun again, and those that were skipped with what they held."""
    fill: float
    """Tokens over the budgets of the batches that were planned for them, 0.0 to 1.0."""
    complete: bool
    """True when the epoch's plan is done to its end."""
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcome of `verify`."""

    checkpoint: str
    """Path of the checkpoint that was read; empty where none could be."""
    attempts: tuple[Attempt, ...]
    """The lineage: which workers trained which steps."""
    epochs: tuple[EpochAudit, ...]
    findings: tuple[str, ...]
    """What is wrong, a sentence each; empty when all is well."""

    @property
    def ok(self) -> bool:
        """True when every example of the committed steps was trained exactly once, or skipped explicitly."""
        return not self.findings


def verify(
    run_dir: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> Audit:
    """Audit a run from its last checkpoint and its source.

    Args:
        run_dir: ``<storage_path>/<run name>``, or one checkpoint of it; a path or URI.
        source: Where the source lies now; None is where the run found it.
        name: The loader's name, for runs with several.

    Returns:
        The audit, with ``ok`` and ``findings``; faults are findings, not exceptions.
    """
    checkpoint = ""
    try:
        filesystem, path = open_path(run_dir)
        checkpoint = last_checkpoint(filesystem, path)
        state = read_state(filesystem, checkpoint, name)
        opened = _open(state, source)
        epochs = _audit_ranks(state, opened) if state.deal == "rank" else _audit_global(state, opened)
    except (RaypackError, OSError) as error:
        return Audit(checkpoint, (), (), (str(error),))
    findings = tuple(finding for epoch in epochs for finding in epoch.findings)
    return Audit(checkpoint, state.ledger.attempts, epochs, findings)


def _open(state: RunState, source: str | os.PathLike[str] | None) -> ArrowSource:
    opened = open_source(os.fspath(source) if source is not None else state.source_path)
    if opened.fingerprint != state.plan.source_id:
        raise SourceError(
            f"the source at {opened.path} is not the one that the run trained: "
            f"{describe_change(state.source, opened)}"
        )
    return opened


def _audit_global(state: RunState, source: ArrowSource) -> tuple[EpochAudit, ...]:
    recorded = state.plan
    if not isinstance(recorded, StepPlannerState):
        raise CheckpointError(f"the global deal needs a planner's state, got {type(recorded).__name__}")
    attempts = state.ledger.attempts
    planner = StepPlanner(
        recorded.source_id,
        source.lengths,
        attempts[0].options if attempts else recorded.options,
        batches_per_step=recorded.batches_per_step,
        packing=recorded.packing,
        window=recorded.window,
        seed=recorded.seed,
        supervised=source.supervised,
        shuffle=recorded.shuffle,
    )
    replayed = replay_global(planner, recorded.source_id, attempts)
    audits = _compare_epochs(state, replayed, len(source))
    planner.change(options=recorded.options, batches_per_step=recorded.batches_per_step)
    if audits and recorded.epoch == planner.epoch and planner.state() != recorded:
        wrong = f"its {recorded.steps} steps end at {planner.cursor}, the state at {recorded.cursor}"
        audits[-1] = _with_finding(audits[-1], wrong)
    return tuple(audits)


def _audit_ranks(state: RunState, source: ArrowSource) -> tuple[EpochAudit, ...]:
    recorded = state.plan
    if not isinstance(recorded, RankPlan):
        raise CheckpointError(f"the rank deal needs the ranks' records, got {type(recorded).__name__}")
    replayed = replay_ranks(recorded, source.lengths, state.ledger.attempts)
    audits = _compare_epochs(state, replayed.epochs, len(source))
    same_epoch = audits and recorded.epoch == audits[-1].epoch
    if same_epoch and replayed.remaining.to_dict() != recorded.consolidated.to_dict():
        audits[-1] = _with_finding(audits[-1], "what the ranks' records leave is not what its steps leave")
    return tuple(audits)


def _compare_epochs(state: RunState, replayed: Sequence[Replay], examples: int) -> list[EpochAudit]:
    entries = state.ledger.epochs
    if len(replayed) < len(entries):
        raise CheckpointError(f"the ledger has {len(entries)} epochs, its attempts {len(replayed)}")
    return [
        _compare(state, entry, result, examples) for entry, result in zip(entries, replayed, strict=False)
    ]


def _compare(state: RunState, entry: EpochEntry, result: Replay, examples: int) -> EpochAudit:
    """Hold an epoch's receipt against its replay."""
    findings = []
    if result.steps != entry.steps:
        findings.append(f"the ledger has {entry.steps} steps, its plan {result.steps}")
    if result.doubled:
        findings.append(f"the plan holds {result.doubled} examples twice")
    committed = entry.receipt + entry.refused.receipt
    if committed != result.receipt:
        key = receipt_key(state.plan.source_id, entry.epoch)
        findings.append(explain(result, committed, key))
    complete = len(result.seen) == examples
    if not complete and entry is not state.ledger.epochs[-1]:
        findings.append(f"it was left after {len(result.seen)} of {examples} examples")
    return EpochAudit(
        epoch=entry.epoch,
        steps=entry.steps,
        trained=entry.receipt.examples,
        examples=examples,
        tokens=entry.receipt.tokens,
        refused=entry.refused,
        fill=result.receipt.tokens / max(1, result.slots),
        complete=complete,
        findings=tuple(f"epoch {entry.epoch}: {finding}" for finding in findings),
    )


def _with_finding(audit: EpochAudit, finding: str) -> EpochAudit:
    return replace(audit, findings=(*audit.findings, f"epoch {audit.epoch}: {finding}"))
