"""A callback for ``RunConfig(callbacks=[...])`` that reads each checkpoint again after its report."""

from __future__ import annotations

import logging
from typing import Any

from ray.train import Checkpoint, UserCallback

from raypack.train.checkpoint_reading import read_state

logger = logging.getLogger(__name__)


class RaypackCallback(UserCallback):
    """Verifies the data's state in every reported checkpoint, on the storage where it came to lie.

    Runs in Ray Train's controller and never raises into it: a checkpoint that cannot be resumed from
    is logged as an error, with the file and the fault.

    Args:
        names: Names of the run's loaders; an unnamed one is None.
    """

    def __init__(self, names: tuple[str | None, ...] = (None,)) -> None:
        self._names = names

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Read and check the report's checkpoint."""
        if checkpoint is None:
            return
        for name in self._names:
            try:
                state = read_state(checkpoint.filesystem, checkpoint.path, name)
            except Exception as error:  # the controller must live on, whatever storage does
                logger.error("the checkpoint cannot be resumed from: %s", error)
            else:
                logger.info("verified %s: step %d", checkpoint.path, state.step)
