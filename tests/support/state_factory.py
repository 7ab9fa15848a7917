"""Run states of real planners, without a cluster."""

import json
from dataclasses import replace

from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.planner import StepPlanner
from raypack.checkpoint.files import (
    checkpoint_name,
    entry_of,
    loader_folder,
    write_manifest,
    write_state,
)
from raypack.checkpoint.goal import Goal
from raypack.checkpoint.ledger import Attempt, EpochEntry, Ledger, Refused
from raypack.checkpoint.run_state import RunState
from raypack.checkpoint.sealing import sealed, unsealed
from raypack.sampling.receipt import Receipt, receipt_key


def trained(
    source,
    *,
    steps=None,
    epochs=1,
    world_size=2,
    report_id="a" * 32,
    budget=64,
    change=None,
    goal=None,
    skipped=(),
):
    """Return the state of a run that has trained some steps of its last epoch, and all before.

    ``change(step, batch)`` says how often a batch was really trained; once where it is None. ``skipped``
    are the steps of each epoch that the optimizer never took.
    """
    planner = StepPlanner(
        source.fingerprint,
        source.lengths,
        TokenBatchOptions(budget),
        batches_per_step=4,
        seed=1,
        supervised=source.supervised,
    )
    entries = []
    for epoch in range(epochs):
        if epoch:
            planner.start_epoch(epoch)
        key, receipt, refused = receipt_key(source.fingerprint, epoch), Receipt(), Refused()
        before = sum(entry.steps for entry in entries)
        planned = planner.steps(0, 10**6 if steps is None or epoch < epochs - 1 else steps)
        for step in planned:
            for k, batch in enumerate(step.batches):
                times = change(step.index, k) if change else 1
                added = sum([Receipt.of(key, batch.indices, batch.real_tokens)] * times, Receipt())
                if step.index in skipped:
                    refused = replace(refused, receipt=refused.receipt + added)
                else:
                    receipt += added
            if step.index in skipped:
                refused += Refused(steps=1, numbers=(before + step.index,))
        planner.commit(len(planned))
        entries.append(EpochEntry(epoch=epoch, steps=len(planned), receipt=receipt, refused=refused))
    total = sum(e.steps for e in entries)
    ledger = Ledger(
        (attempt_of(planner, 0, world_size, 0, total),) if total else (),
        tuple(entries) if total else (),
    )
    return RunState(
        report_id=report_id,
        world_size=world_size,
        source_path=source.path,
        source=source.summary(),
        goal=goal or Goal(epochs=epochs),
        plan=planner.state(),
        ledger=ledger,
    )


def attempt_of(planner, number, world_size, first_step, steps):
    """Return the ledger's attempt of a planner."""
    return Attempt(
        number=number,
        world_size=world_size,
        first_step=first_step,
        steps=steps,
        batches_per_step=planner.batches_per_step,
        options=planner.options,
    )


def name_of(state):
    """Return the name that a report would give the state's checkpoint."""
    return checkpoint_name(state.to_dict())


def write(directory, state, name=None):
    """Write a state's files as a report does."""
    folder = loader_folder(directory, name)
    write_manifest(folder, state.to_dict(), write_state(folder, state.to_dict()))


def run_of(tmp_path, state):
    """Lay out a run directory as Ray Train does, with one registered checkpoint."""
    run = tmp_path / "run"
    name = name_of(state)
    write(run / name, state)
    snapshot = {"latest_checkpoint_result": {"checkpoint_dir_name": name}}
    (run / "checkpoint_manager_snapshot.json").write_text(json.dumps(snapshot))
    return run


def forge(directory, file, change):
    """Change a file of a checkpoint as somebody would who can seal it: every digest is right again.

    ``change(values)`` gets the file's values and returns others, or bytes to write as they are.
    """
    folder = directory / "raypack"
    changed = change(unsealed((folder / file).read_bytes()))
    data = changed if isinstance(changed, bytes) else sealed(changed)
    (folder / file).write_bytes(data)
    if file != "manifest.json":
        manifest = unsealed((folder / "manifest.json").read_bytes())
        manifest["files"][file] = entry_of(data)
        (folder / "manifest.json").write_bytes(sealed(manifest))
