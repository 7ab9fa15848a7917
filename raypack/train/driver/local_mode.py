"""What Ray Train's local mode (``ScalingConfig(num_workers=0)``) lacks: the run's storage.

There the train function runs in the driver, and Ray Train stores nothing: a report's checkpoint stays where
it was written, no list of checkpoints is kept, and a start under the same name finds none. Here such a run
has the folder ``<storage_path>/<name>`` that one with workers has, in the same format, so that either goes
on from the other and `raypack verify` reads both.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import ray.train
from ray.train import Checkpoint, RunConfig
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.storage import StorageContext, get_fs_and_path
from ray.train.v2._internal.execution.training_report import _TrainingReport

from raypack.arguments import shown
from raypack.checkpoint.registered import registered
from raypack.errors import LoaderError
from raypack.train.reporting.keeping import keep_newest_good

logger = logging.getLogger(__name__)


class _Manager(CheckpointManager):
    """Ray Train's checkpoint manager, in a process with no waiter to notify."""

    def _notify(self) -> None:
        pass


class LocalRun:
    """A run in local mode: where its checkpoints lie, and which it has.

    Args:
        config: The trainer's; storage is touched once there is something to restore or to store.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._known: _Manager | None = None
        self.path, self._found = "", False
        if self.has_storage:
            filesystem, root = get_fs_and_path(config.storage_path, config.storage_filesystem)
            self.path = f"{str(root).rstrip('/')}/{config.name}"
            self._found = bool(registered(filesystem, self.path))

    @property
    def has_storage(self) -> bool:
        """Whether Ray Train can store anything there; with workers it refuses a relative path."""
        path = self.storage_path
        return bool(self._config.storage_filesystem) or os.path.isabs(path) or "://" in path

    @property
    def storage_path(self) -> str:
        """What the trainer was given."""
        return str(self._config.storage_path)

    @property
    def storage(self) -> StorageContext:
        """The run's storage, made ready for writing."""
        return self._config.storage_context

    @property
    def _manager(self) -> _Manager:
        if self._known is None:
            self._known = _Manager(self._config.checkpoint_config, self.storage)
            keep_newest_good(self._known)
        return self._known

    @property
    def last(self) -> Checkpoint | None:
        """The last checkpoint, of this start or of one before."""
        if self._known is None and not self._found:
            return None
        result = self._manager.latest_checkpoint_result
        return result.checkpoint if result is not None else None

    def register(self, checkpoint: Checkpoint, metrics: dict[str, Any]) -> None:
        """Note that a stored checkpoint is the last one; old ones go as ``checkpoint_config`` says."""
        report = _TrainingReport(checkpoint=checkpoint, metrics=metrics, validation=False)
        self._manager.register_checkpoint(report)

    def around(self, train: Callable[[], Any]) -> Callable[[], Any]:
        """Return a train function whose `ray.train.get_checkpoint` knows the run's last checkpoint."""

        def restored() -> Any:
            if self.last is not None:
                result = self._manager.latest_checkpoint_result
                ray.train.report(result.metrics, checkpoint=result.checkpoint)
            return train()

        return restored


_runs: list[LocalRun] = []
"""The run of this process that is in local mode now; the last one, should they be nested."""


def current_run() -> LocalRun:
    """Return the run whose train function calls, in local mode.

    Raises:
        LoaderError: The trainer began before raypack knew of it, or its storage path is relative.
    """
    if not _runs:
        raise LoaderError(
            "in local mode raypack.train must be imported before trainer.fit() is called, got a train "
            "function that imports it by itself: import it at the top of the script"
        )
    run = _runs[-1]
    if not run.has_storage:
        raise LoaderError(
            f"storage_path must be an absolute path or a URI, got {shown(run.storage_path)}: checkpoints of "
            "local mode lie there too"
        )
    return run


def run_locally(run: Callable[[Any, Callable[[], Any]], Any], trainer: Any, train: Callable[[], Any]) -> Any:
    """Run a trainer's train function in this process, with storage.

    Args:
        run: The trainer's own method that does so.
        trainer: The trainer.
        train: The train function.
    """
    here = LocalRun(trainer.run_config)
    _runs.append(here)
    try:
        result = run(trainer, here.around(train))
        if here.last is not None:
            result.path = here.path  # which Ray Train leaves out
            result.checkpoint = result.checkpoint or here.last  # None after a report of metrics alone
        return result
    finally:
        _runs.remove(here)
