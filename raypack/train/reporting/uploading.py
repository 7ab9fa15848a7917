"""Uploads a rank's directory to the run's storage: retries transient errors, explains the others."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path

import pyarrow.fs as pafs
import ray.train
from ray.train import Checkpoint
from ray.train.v2._internal.execution.storage import StorageContext

from raypack.checkpoint.files import remedy
from raypack.errors import CheckpointError
from raypack.guards import degrade

logger = logging.getLogger(__name__)

WAITS_S = (1.0, 4.0, 16.0)
"""Pauses before an upload is retried, seconds: long enough for a store that throttles."""
_LASTING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
"""What waiting does not mend: no space, no permission."""


def upload(checkpoint: Checkpoint, name: str, storage: StorageContext | None = None) -> Checkpoint:
    """Copy a rank's directory into the run's storage; what Ray Train is given to call.

    Args:
        checkpoint: The rank's directory.
        name: Name of the checkpoint's folder, common to all ranks.
        storage: The run's storage; None is Ray Train's own of this worker.

    Raises:
        CheckpointError: It could not be written; the first file that is not whole there is named.
    """
    storage = storage or ray.train.get_context().get_storage()
    target = storage.build_checkpoint_path_from_name(name)
    if not os.listdir(checkpoint.path):
        return Checkpoint(target, storage.storage_filesystem)
    for wait in (*WAITS_S, None):
        try:
            return storage.persist_current_checkpoint(checkpoint, name)
        except Exception as error:  # each file system has errors of its own
            if wait is None or getattr(error, "errno", None) in _LASTING:
                place = _place(Path(checkpoint.path), storage.storage_filesystem, target)
                raise CheckpointError(
                    f"{place} cannot be written ({type(error).__name__}: {error}): "
                    f"{remedy(error, 'in the storage_path of the run')}"
                ) from error
            degrade(logger, "upload of %s failed, once more in %g s: %s", target, wait, error)
            time.sleep(wait)
    raise AssertionError("unreachable")


def _place(directory: Path, filesystem: pafs.FileSystem, target: str) -> str:
    """Return the first file that is missing or not whole at the target; the target if that is not known."""
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    paths = [f"{target}/{file.relative_to(directory).as_posix()}" for file in files]
    try:
        infos = filesystem.get_file_info(paths)
    except Exception as error:  # storage that cannot even be listed; the first error is what counts
        degrade(logger, "%s cannot be listed: %s", target, error)
        return target
    for file, info in zip(files, infos, strict=True):
        if info.type != pafs.FileType.File or info.size != file.stat().st_size:
            return str(info.path)
    return target
