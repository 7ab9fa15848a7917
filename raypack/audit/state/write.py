"""Writes a resharded state atomically, and reads it back before it is put in place."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from pathlib import Path

import pyarrow.fs as pafs

from raypack.audit import recorded_source
from raypack.batching.rank.state import TokenBatchState
from raypack.checkpoint.files import (
    FOLDER,
    loader_folder,
    report_id_in_name,
    write_manifest,
    write_rank,
    write_state,
)
from raypack.checkpoint.rank_plan import RankPlan
from raypack.checkpoint.reading import loader_names, read_state
from raypack.checkpoint.run_state import RunState
from raypack.errors import CheckpointError


def check_target(out: recorded_source.Path, name: str | None) -> Path:
    """Return the directory to write into, once nothing in it would be overwritten or made stale.

    Raises:
        CheckpointError: It is no local path, holds such a state already, or is named as a report's.
    """
    text = os.fspath(out)
    if not text or "://" in text or "\0" in text:
        raise CheckpointError(
            f"out must be a local directory, got {text!r}: write there, then copy it, manifest.json last"
        )
    directory = Path(text).expanduser().absolute()
    if report_id_in_name(str(directory)):
        raise CheckpointError(
            f"out must not be named as the checkpoint of a report is, got {directory.name!r}: its state "
            "would be refused there as stale; choose another name"
        )
    if directory.exists() and not directory.is_dir():
        raise CheckpointError(f"out must be a directory, got the file {directory}")
    names = loader_names(pafs.LocalFileSystem(), str(directory))
    if name in names or None in names or (name is None and names):
        raise CheckpointError(
            f"out must hold no state yet, but {directory}/{FOLDER} does; it is never overwritten: "
            "name another directory"
        )
    return directory


def write_reshard(
    out: recorded_source.Path, name: str | None, state: RunState, records: list[TokenBatchState]
) -> str:
    """Write a state for other ranks; weights and other files of the checkpoint are not copied.

    Args:
        out: A local directory; made if it is missing.
        name: The loader's name.
        state: The state as it was read.
        records: The records of the new ranks, by rank.

    Returns:
        The folder that was written.

    Raises:
        CheckpointError: See `check_target`; or what was written does not say what was read.
    """
    directory = check_target(out, name)
    directory.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".raypack-reshard-", dir=directory.parent))
    try:
        _write(stage, name, state, records)
        _check(stage, name, state)
        target = loader_folder(directory, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(loader_folder(stage, name), target)
    finally:
        shutil.rmtree(stage)
    return str(target)


def _write(stage: Path, name: str | None, state: RunState, records: list[TokenBatchState]) -> None:
    folder, report_id = loader_folder(stage, name), uuid.uuid4().hex
    values = {**state.to_dict(), "report_id": report_id, "world_size": len(records)}
    files = write_state(folder, values)
    for rank, record in enumerate(records):
        files |= write_rank(folder, record.to_dict(), report_id=report_id, rank=rank, world_size=len(records))
    write_manifest(folder, values, files)


def _check(stage: Path, name: str | None, state: RunState) -> None:
    """Read a written state as a restore does: it must leave what the old one leaves."""
    written = read_state(pafs.LocalFileSystem(), str(stage), name)
    old, new = state.plan, written.plan
    if not isinstance(old, RankPlan) or not isinstance(new, RankPlan):
        raise CheckpointError("a reshard is written under the rank deal only")
    same = old.consolidated.to_dict() == new.consolidated.to_dict() and old.to_dict() == new.to_dict()
    if not same or written.ledger != state.ledger:
        raise CheckpointError(f"what was written to {stage} is not what was read; nothing was put in place")
