"""Hands a rank's directory to Ray Train, and removes it once its files are in the run's storage."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from raypack.checkpoint.files import remedy
from raypack.errors import CheckpointError
from raypack.guards import degrade
from raypack.train.driver.local_mode import current_run
from raypack.train.reporting.barrier import ReportBarrier
from raypack.train.reporting.uploading import upload

logger = logging.getLogger(__name__)

_PREFIX = "raypack-report-"
_UPLOAD_LIMIT_S = 6 * 3600.0
"""How long ranks wait for each other's uploads, seconds; a rank that fails notifies the others at once."""


class RankDirectory:
    """A local directory of one rank, never shared; removed at the end, unless it was handed over.

    Use as a context.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._handed_over = False

    @property
    def path(self) -> Path:
        """The directory, once it is made."""
        if self._path is None:
            raise CheckpointError("the rank's directory must be made before it is used")
        return self._path

    def make(self) -> Path:
        """Make the directory.

        Raises:
            CheckpointError: There is no space for it, or no permission.
        """
        _remove_stale_directories()
        try:
            self._path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_process_namespace()}-{os.getpid()}-"))
        except OSError as error:
            place = error.filename or "a temporary directory"
            raise CheckpointError(
                f"{place} cannot be made ({error.strerror}): {remedy(error, 'there')} by TMPDIR"
            ) from error
        return self._path

    def hand_over(self) -> None:
        """Leave the removal to whoever calls `remove`."""
        self._handed_over = True

    def remove(self) -> None:
        """Remove the directory and what is in it, if it is there."""
        if self._path is None or not self._path.exists():
            return
        try:
            shutil.rmtree(self._path)
        except OSError as error:
            degrade(logger, "%s is left behind, remove it by hand: %s", self._path, error)

    def __enter__(self) -> RankDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or not self._handed_over:
            self.remove()


@functools.cache
def _remove_stale_directories() -> None:
    """Remove what workers that were killed inside a report have left; once a process.

    A PID is meaningful only on the same boot of the same machine, in the same PID namespace. TMPDIR may be
    shared, so directories from anywhere else are left alone.
    """
    namespace = _process_namespace()
    if namespace is None:
        return
    prefix = f"{_PREFIX}{namespace}-"
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        owner = path.name.removeprefix(prefix).partition("-")[0]
        if owner.isdecimal() and not _pid_alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)  # another worker may be removing it too


@functools.cache
def _process_namespace() -> str | None:
    """Return an id of the PID namespace and boot of this process; None where they cannot be read."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    return hashlib.blake2b(f"{boot}{namespace}".encode(), digest_size=6).hexdigest()


def _pid_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def send(
    metrics: dict[str, Any], directory: RankDirectory, name: str, mode: str, barrier: ReportBarrier
) -> None:
    """Report to Ray Train; under ``sync`` all ranks end it together, or none registers it.

    Args:
        metrics: JSON values.
        directory: The rank's directory, filled.
        name: Name of the checkpoint's folder in storage.
        mode: ``sync``, ``async``, or ``local``: in local mode, where Ray Train stores nothing by itself.
        barrier: The ranks of this report.
    """
    if mode == "local":
        _store(metrics, directory, name)
    elif mode == "sync":
        _send_and_wait(metrics, directory, name, barrier)
    else:
        _send_async(metrics, directory, name)


def send_metrics(metrics: dict[str, Any], local: bool) -> None:
    """Report metrics alone; the last checkpoint stays the last one.

    Args:
        metrics: JSON values.
        local: Whether Ray Train is in local mode, where a report without a checkpoint would forget the last.
    """
    ray.train.report(metrics, checkpoint=ray.train.get_checkpoint() if local else None)


def _store(metrics: dict[str, Any], directory: RankDirectory, name: str) -> None:
    run = current_run()
    stored = upload(Checkpoint.from_directory(directory.path), name, run.storage)
    run.register(stored, metrics)
    ray.train.report(metrics, checkpoint=stored)


def _send_and_wait(
    metrics: dict[str, Any], directory: RankDirectory, name: str, barrier: ReportBarrier
) -> None:
    begun = False

    def upload_together(checkpoint: Checkpoint, folder: str) -> Checkpoint:
        nonlocal begun
        begun, out = True, []
        barrier.do("upload", lambda: out.append(upload(checkpoint, folder)), timeout_s=_UPLOAD_LIMIT_S)
        return out[0]

    try:
        ray.train.report(
            metrics,
            checkpoint=Checkpoint.from_directory(directory.path),
            checkpoint_dir_name=name,
            checkpoint_upload_mode=CheckpointUploadMode.SYNC,
            delete_local_checkpoint_after_upload=False,
            checkpoint_upload_fn=upload_together,
        )
    finally:
        if not begun:  # refused or skipped here: the others must not wait for this rank
            barrier.fail("upload", "Ray Train did not take its report")


def _send_async(metrics: dict[str, Any], directory: RankDirectory, name: str) -> None:
    def upload_and_remove(checkpoint: Checkpoint, folder: str) -> Checkpoint:
        try:
            return upload(checkpoint, folder)
        finally:
            directory.remove()

    empty = not os.listdir(directory.path)
    if not empty:
        directory.hand_over()
    ray.train.report(
        metrics,
        checkpoint=None if empty else Checkpoint.from_directory(directory.path),
        checkpoint_dir_name=name,
        checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
        delete_local_checkpoint_after_upload=False,
        checkpoint_upload_fn=upload_and_remove,
    )
