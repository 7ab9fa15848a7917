"""A callback for ``RunConfig(callbacks=[...])``: verifies each checkpoint, saves before a planned resize."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from ray.train import Checkpoint, UserCallback

from raypack.train.keeping import keep_newest_good, manager_of
from raypack.train.restoring import check_state
from raypack.train.saving import REASON, RESIZE, Wish, ask_to_save

logger = logging.getLogger(__name__)

START_TIMEOUT_VARIABLE = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
_POLL_S = 0.05

_bases: tuple[type, ...]
try:
    from ray.train.v2._internal.execution.callback import (
        ControllerCallback,
        ReportCallback,
        WorkerGroupCallback,
    )

    _bases = (ControllerCallback, WorkerGroupCallback, ReportCallback)
    HOOKED = True
except ImportError:
    _bases = (UserCallback,)
    HOOKED = False
"""Whether Ray Train's own hooks are there; the public interface knows nothing of resizes."""


def _never_raises(hook: Callable[..., None]) -> Callable[..., None]:
    """Log what a hook raises: in the controller it would end the run."""

    @wraps(hook)
    def guarded(*arguments: Any, **more: Any) -> None:
        try:
            hook(*arguments, **more)
        except Exception:
            logger.exception("raypack's callback failed in %s; the run goes on", hook.__name__)

    return guarded


class RaypackCallback(*_bases):  # type: ignore[misc]
    """Verifies the data's state in every reported checkpoint, and saves before a planned resize.

    Each checkpoint is read again on the storage where it came to lie; one that cannot be resumed from
    is logged as an error, with the file and the fault, and the newest good one is kept beyond
    ``num_to_keep`` until there is another. Before a resize that Ray Train has planned,
    every rank is asked to report once more, in the way that the train function did last, so that the
    new workers go on where the old ones stopped; where that takes too long, from the last checkpoint.
    Runs in Ray Train's controller and never raises into it.

    Args:
        names: Names of the run's loaders; an unnamed one is None.
        save_timeout_s: How long a planned resize waits for the save, seconds; 0 does not save.
        start_timeout_s: How long Ray Train waits for the workers of a new size before it looks again
            what there is, seconds; it sets ``RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S`` unless that is
            set. Ray's own 60 s are lost each time that a node vanishes. None leaves it alone.
    """

    def __init__(
        self,
        names: tuple[str | None, ...] = (None,),
        *,
        save_timeout_s: float = 60.0,
        start_timeout_s: float | None = 25.0,
    ) -> None:
        self._names = names
        self._save_timeout_s = save_timeout_s
        self._workers: Any = None
        self._failed = False
        self._saves = 0
        if start_timeout_s is not None:
            os.environ.setdefault(START_TIMEOUT_VARIABLE, f"{start_timeout_s:g}")
        if not HOOKED:
            logger.warning("this Ray has no hook before a resize; steps since the last report are lost there")

    # -- reports ---------------------------------------------------------------------------------

    @_never_raises
    def after_report(self, context: Any, metrics: list[dict[str, Any]], checkpoint: Any = None) -> None:
        """Read and check the report's checkpoint; Ray's own hook gives it in its first argument."""
        if HOOKED:
            checkpoint = context.checkpoint
            self._saves += REASON in context.metrics
        if checkpoint is not None:
            self._verify(checkpoint)

    def _verify(self, checkpoint: Checkpoint) -> None:
        for name in self._names:
            try:
                state = check_state(checkpoint.filesystem, checkpoint.path, name)
            except Exception as error:  # the controller must live on, whatever storage does
                logger.error("the checkpoint cannot be resumed from: %s", error)
            else:
                logger.info("verified %s: step %d", checkpoint.path, state.step)

    # -- resizes ---------------------------------------------------------------------------------

    @_never_raises
    def after_worker_group_start(self, worker_group: Any) -> None:
        """Know the workers that may be asked to save, and have the newest good checkpoint kept."""
        self._workers, self._failed = worker_group, False
        keep_newest_good(manager_of(worker_group), self._names)

    @_never_raises
    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        """Forget them."""
        self._workers = None

    @_never_raises
    def before_controller_execute_failure_decision(self, failure_decision: Any) -> None:
        """Know that the resize decision that follows is a restart, of workers that are no more."""
        self._failed = True

    @_never_raises
    def before_controller_execute_resize_decision(self, resize_decision: Any) -> None:
        """Have every rank save, and wait until the checkpoint is registered."""
        if self._workers is None or self._failed or not self._save_timeout_s:
            return
        able = self._workers.execute(ask_to_save, Wish(RESIZE, hold_s=self._save_timeout_s))
        if not all(able):
            logger.info(
                "no save before the resize: the train function has not reported yet, or runs no loader"
            )
            return
        wanted, deadline = self._saves + 1, time.monotonic() + self._save_timeout_s
        while self._saves < wanted and time.monotonic() < deadline:
            status = self._workers.poll_status(timeout=1)  # registers what the ranks report
            if self._saves < wanted and status.errors:
                logger.warning("no save before the resize: a rank failed: %s", status.errors)
                return
            if self._saves < wanted and status.finished:
                logger.info("no save before the resize: the train function has ended")
                return
            time.sleep(_POLL_S)
        if self._saves >= wanted:
            logger.info("saved before the resize to %d workers", resize_decision.num_workers)
        else:
            logger.warning(
                "no save within save_timeout_s=%g; resizing from the last checkpoint. A save takes up to "
                "three steps: give more where steps are long",
                self._save_timeout_s,
            )
