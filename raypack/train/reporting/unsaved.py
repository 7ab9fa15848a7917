"""Steps that a run has committed and no checkpoint holds: noted by rank 0, logged in the driver at the end.

Rank 0 notes in Ray's key-value store when a loader is opened, reports and is closed, under the run's name in
this job. The driver reads the notes when `fit` ends; those of an attempt are deleted when the next begins.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass

import ray
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

from raypack.train.elastic.worker_context import WorkerContext

logger = logging.getLogger(__name__)

_SPACE = b"raypack"


@dataclass(frozen=True, slots=True)
class Note:
    """Progress of one loader of a run's last attempt."""

    reported: int
    """Steps that a checkpoint holds: those of the last report, or of the checkpoint it began with."""
    committed: int | None = None
    """Steps committed in all, known once the loader is closed."""


def note_start(worker: WorkerContext, name: str | None, reported: int) -> None:
    """Note that a loader is opened, and forget the notes of attempts before; see `note`."""
    if worker.rank == 0 and ray.is_initialized():
        for key in _internal_kv_list(_key(worker.run_name), namespace=_SPACE):
            if not key.startswith(_attempt(worker)):
                _internal_kv_del(key, namespace=_SPACE)
    note(worker, name, reported)


def note(worker: WorkerContext, name: str | None, reported: int, committed: int | None = None) -> None:
    """Note how far a loader is; on rank 0, where there is a Ray.

    Args:
        worker: Where this worker stands.
        name: The loader's name.
        reported: Steps that a checkpoint holds.
        committed: Steps committed, once the loader is closed.
    """
    if worker.rank == 0 and ray.is_initialized():
        value = json.dumps(asdict(Note(reported, committed)))
        _internal_kv_put(_attempt(worker) + (name or "").encode(), value.encode(), namespace=_SPACE)


def warn_of_unsaved(worker: WorkerContext, steps: int) -> None:
    """Log a warning on the worker of rank 0, for the driver may be none of raypack's.

    Args:
        worker: Where this worker stands.
        steps: Steps committed since the last report.
    """
    if steps and worker.rank == 0 and not worker.local:
        logger.warning(
            "%d steps after the last report are in no checkpoint; call raypack.train.report after the loop "
            "too, inside of the 'with' block",
            steps,
        )


def forget(run: str) -> None:
    """Remove the notes of a run of this job."""
    if ray.is_initialized():
        _internal_kv_del(_key(run), del_by_prefix=True, namespace=_SPACE)


def notes(run: str) -> dict[str, Note]:
    """Return the notes of a run of this job by its loaders' names; an unnamed one is ''."""
    if not ray.is_initialized():
        return {}
    return {
        full.rsplit(b":", 1)[1].decode(): Note(**json.loads(_internal_kv_get(full, namespace=_SPACE)))
        for full in _internal_kv_list(_key(run), namespace=_SPACE)
    }


def _key(run: str) -> bytes:
    return f"{ray.get_runtime_context().get_job_id()}:{len(run)}:{run}:".encode()


def _attempt(worker: WorkerContext) -> bytes:
    return _key(worker.run_name) + f"{worker.group}:".encode()


def log_unsaved(run: str, *, failed: bool) -> None:
    """Log an error for each loader of a run that ended with committed steps in no checkpoint.

    Args:
        run: The run's name.
        failed: Whether it ended with an error.
    """
    for name, last in sorted(notes(run).items()):
        text = _unsaved(f"run {run!r}" + (f", loader {name!r}," if name else ""), last, failed)
        if text is not None:
            logger.error(text)
    forget(run)


def _unsaved(who: str, last: Note, failed: bool) -> str | None:
    """Return what is to be said of a loader; None where nothing was lost, or nothing is known."""
    if last.committed is None:  # its process was killed, or the loader is open still
        if failed:
            return None
        return (
            f"{who} has ended with its loader open: steps committed after the {last.reported} that it began "
            "with or reported, if there were any, are in no checkpoint; open get_loader in a 'with' block"
        )
    if last.committed == last.reported:
        return None
    count, steps = last.committed - last.reported, f"{last.reported} to {last.committed - 1}"
    if failed:
        return f"{who} has failed with {count} committed steps ({steps}) in no checkpoint; they are lost"
    return (
        f"{who} has ended with {count} committed steps ({steps}) in no checkpoint: call "
        "raypack.train.report(metrics, loader, save=save) on every rank, in the loop and once more after it, "
        "inside of the 'with' block; ray.train.report in its place keeps no state of the data"
    )
