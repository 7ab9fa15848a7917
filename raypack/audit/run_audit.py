"""The audit: from one checkpoint and the source, that every example was trained exactly once.

The ledger says how many steps of each epoch the weights have seen; the plan of those steps follows
from the recorded state alone. The receipt says what the train loops really received and committed.
They must agree, and the plan must hold no example twice, and all of them where the epoch is done.
Whether that is all that the run was to do, its goal says.
"""

from __future__ import annotations

import os

import pyarrow as pa

from raypack.audit.bounds import check_bounds
from raypack.audit.reached import is_reached, left_out, not_trained
from raypack.audit.recorded_source import check_source, open_recorded
from raypack.audit.replay.global_replay import Replay, explain
from raypack.audit.replay.replayed import GlobalReplay, RankReplay
from raypack.audit.replay.stretches import stretches_of
from raypack.audit.verdict import Audit, EpochAudit
from raypack.checkpoint.ledger import EpochEntry
from raypack.checkpoint.locate import NoRunError, last_checkpoint, open_path
from raypack.checkpoint.reading import read_files
from raypack.checkpoint.run_state import RunState
from raypack.errors import RaypackError
from raypack.sampling.receipt import receipt_key
from raypack.source import ArrowSource

_FAULTS = (RaypackError, OSError, pa.ArrowException)


def verify(
    run_dir: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> Audit:
    """Audit a run from its last checkpoint and its source.

    Args:
        run_dir: ``<storage_path>/<run name>``, or one checkpoint of it; a path or URI.
        source: Where the source lies now; None is where the run found it, which is opened if it is a
            local path or in the store that the run is in.
        name: The loader's name, for runs with several.

    Returns:
        The audit. ``ok``: the run is complete, its goal reached and each planned example trained exactly
        once. ``consistent``: no fault so far. ``findings``: the faults, which are no exceptions.
    """
    try:
        filesystem, path = open_path(run_dir)
        checkpoint = last_checkpoint(filesystem, path)
    except (NoRunError, OSError, pa.ArrowException) as error:
        return Audit("", findings=(str(error),), found=False)
    except RaypackError as error:
        return Audit("", findings=(str(error),))
    try:
        files = read_files(filesystem, checkpoint, name)
        opened = open_recorded(files.source_path, run_dir, source)
        return _audit(checkpoint, files.state(len(opened)), opened)
    except _FAULTS as error:
        return Audit(checkpoint, findings=(str(error),))


def _audit(checkpoint: str, state: RunState, source: ArrowSource) -> Audit:
    check_source(state, source)
    check_bounds(state)
    epochs, findings = _replayed(state, source)
    return Audit(
        checkpoint=checkpoint,
        attempts=state.ledger.attempts,
        epochs=epochs,
        findings=(*(finding for epoch in epochs for finding in epoch.findings), *findings),
        goal=state.goal,
        reached=is_reached(state.goal, epochs),
        not_trained=not_trained(state.goal, epochs, len(source)),
        left_out=left_out(state.goal, epochs, len(source)),
    )


def _replayed(state: RunState, source: ArrowSource) -> tuple[tuple[EpochAudit, ...], list[str]]:
    """Replay epoch after epoch, and hold the end against the plan that the checkpoint holds."""
    deal: GlobalReplay | RankReplay
    deal = RankReplay(state, source) if state.deal == "rank" else GlobalReplay(state, source)
    audits = []
    for entry, stretches in zip(state.ledger.epochs, stretches_of(state.ledger), strict=True):
        replay = Replay.of(len(source), receipt_key(state.plan.source_id, entry.epoch))
        deal.replay(entry.epoch, stretches, replay)
        audits.append(_compare(state, entry, replay, len(source)))
    difference = deal.difference()
    return tuple(audits), [f"epoch {state.plan.epoch}: {difference}"] if difference else []


def _compare(state: RunState, entry: EpochEntry, result: Replay, examples: int) -> EpochAudit:
    """Hold an epoch's receipt against its replay."""
    findings = []
    if result.steps != entry.steps:
        findings.append(f"the ledger has {entry.steps} steps, its plan {result.steps}")
    if result.doubled:
        findings.append(f"the plan holds {result.doubled} examples twice")
    committed = entry.receipt + entry.refused.receipt
    if committed != result.receipt:
        findings.append(explain(result, committed))
    if entry.refused.steps > entry.steps:
        findings.append(f"the ledger has {entry.steps} steps, {entry.refused.steps} of them skipped")
    complete = result.seen == examples
    if not complete and entry.epoch != state.plan.epoch:
        findings.append(f"it was left after {result.seen} of {examples} examples")
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
        batches=entry.batches,
        observed=entry.observed,
    )
