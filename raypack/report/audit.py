"""The audit: from one checkpoint and the source, that every example was trained exactly once.

The ledger says how many steps of each epoch the weights have seen; the plan of those steps follows
from the recorded state alone. The receipt says what the train loops really received and committed.
They must agree, and the plan must hold no example twice, and all of them where the epoch is done.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from raypack.batching.step_planner import StepPlanner
from raypack.errors import RaypackError, SourceError
from raypack.report.locate import last_checkpoint, open_path
from raypack.report.replay import explain, replay
from raypack.sampling.receipt import receipt_key
from raypack.source import ArrowSource, describe_change, open_source
from raypack.train.checkpoint_files import read_state
from raypack.train.ledger import Attempt, EpochEntry
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
        """True when every example of what was trained was trained exactly once."""
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
        epochs = tuple(_audit_epoch(state, opened, entry) for entry in state.ledger.epochs)
    except (RaypackError, OSError) as error:
        return Audit(checkpoint, (), (), (str(error),))
    findings = tuple(finding for epoch in epochs for finding in epoch.findings)
    return Audit(checkpoint, state.ledger.attempts, epochs, findings)


def _open(state: RunState, source: str | os.PathLike[str] | None) -> ArrowSource:
    opened = open_source(os.fspath(source) if source is not None else state.source_path)
    if opened.fingerprint != state.planner.source_id:
        raise SourceError(
            f"the source at {opened.path} is not the one that the run trained: "
            f"{describe_change(state.source, opened)}"
        )
    return opened


def _audit_epoch(state: RunState, source: ArrowSource, entry: EpochEntry) -> EpochAudit:
    recorded = state.planner
    planner = StepPlanner(
        recorded.source_id,
        source.lengths,
        recorded.options,
        batches_per_step=recorded.batches_per_step,
        packing=recorded.packing,
        seed=recorded.seed,
        epoch=entry.epoch,
        supervised=source.supervised,
        shuffle=recorded.shuffle,
    )
    result = replay(planner, entry.steps)
    last = entry is state.ledger.epochs[-1]
    key = receipt_key(recorded.source_id, entry.epoch)
    findings = []
    if result.steps < entry.steps:
        findings.append(f"the ledger has {entry.steps} steps, the epoch only {result.steps}")
    if result.doubled:
        findings.append(f"the plan holds {result.doubled} examples twice")
    if entry.receipt != result.receipt:
        findings.append(explain(result, entry.receipt, key))
    if not planner.finished and not last:
        findings.append(f"it was left after {len(result.seen)} of {len(source)} examples")
    if last and recorded.epoch == entry.epoch and planner.cursor != recorded.cursor:
        findings.append(f"its {entry.steps} steps end at {planner.cursor}, the state at {recorded.cursor}")
    return EpochAudit(
        epoch=entry.epoch,
        steps=entry.steps,
        trained=entry.receipt.examples,
        examples=len(source),
        tokens=entry.receipt.tokens,
        fill=result.receipt.tokens / max(1, len(result.batch_sizes) * recorded.options.maximum_tokens),
        complete=planner.finished,
        findings=tuple(f"epoch {entry.epoch}: {finding}" for finding in findings),
    )
