"""Keeps a run's newest good checkpoint from being deleted while newer ones cannot be resumed from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager

from raypack.checkpoint.reading import loader_names
from raypack.errors import CheckpointError
from raypack.train.elastic.restoring import check_state

logger = logging.getLogger(__name__)

_SPARES = "_spares_the_newest_good_checkpoint"


def keep_newest_good(manager: Any, names: Sequence[str | None] | None = None) -> None:
    """Let a checkpoint manager of Ray Train spare the newest checkpoint that is good.

    ``CheckpointConfig(num_to_keep=...)`` counts checkpoints, whatever they hold, and deletes the old ones as
    soon as a new one is registered. The manager has no public hook for this, so its deleting method
    is replaced on this one object: the newest good one is kept beside those that it keeps.

    Args:
        manager: The run's ``CheckpointManager``.
        names: Names of the run's loaders; None: all whose state is in a checkpoint.

    Raises:
        AttributeError: The manager of this Ray version has other attributes.
    """
    if hasattr(manager, _SPARES):
        return
    save_and_delete: Callable[[], None] = manager._save_state_and_delete_old_checkpoints
    manager._write_state_to_storage, manager._checkpoint_results  # noqa: B018 - is it the one known here?

    def sparing() -> None:
        config = manager._checkpoint_config
        keep = config.num_to_keep
        good = _newest_good(manager, names) if keep is not None else None
        before = manager._checkpoint_results
        if good is None or good in [*before[-keep:], manager._latest_checkpoint_result]:
            save_and_delete()
            return
        manager._checkpoint_results = [*(one for one in before if one is not good), good]
        manager._checkpoint_config = replace(config, num_to_keep=keep + 1)
        try:
            save_and_delete()  # deletes from the front
        finally:
            manager._checkpoint_config = config
            left = manager._checkpoint_results
            manager._checkpoint_results = [one for one in before if one in left]
        manager._write_state_to_storage()  # once more, in the order in which they were registered
        logger.warning("kept %s beyond num_to_keep=%d: no newer one is good", good.checkpoint.path, keep)

    manager._save_state_and_delete_old_checkpoints = sparing
    setattr(manager, _SPARES, True)


def manager_of(worker_group: Any) -> Any:
    """Return the checkpoint manager of a worker group of Ray Train.

    Raises:
        LookupError: This Ray keeps it elsewhere.
    """
    for callback in getattr(worker_group, "_callbacks", ()):
        if isinstance(callback, CheckpointManager):
            return callback
    raise LookupError("this Ray keeps the checkpoint manager elsewhere")


def _newest_good(manager: Any, names: Sequence[str | None] | None) -> Any:
    """Return the newest result whose checkpoint is good; None where there is none."""
    order = manager._checkpoint_to_report_index
    for result in sorted(manager._checkpoint_results, key=lambda one: order[one.checkpoint], reverse=True):
        filesystem, path = result.checkpoint.filesystem, result.checkpoint.path
        try:
            for name in names or loader_names(filesystem, path) or (None,):
                check_state(filesystem, path, name)
        except (CheckpointError, OSError):
            continue  # the callback names it
        return result
    return None
