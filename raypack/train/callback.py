"""A callback for ``RunConfig(callbacks=[...])``: verifies each checkpoint, saves before a planned resize."""

from __future__ import annotations

import logging
import os
from typing import Any

from ray.train import Checkpoint, UserCallback

from raypack.errors import CheckpointError, ResourceError
from raypack.guards import degrade, guard
from raypack.train.driver.hooks import check_hooks, log_where_ray_train_does
from raypack.train.driver.resizing import ResizeSave, save_before_resize
from raypack.train.driver.run_resources import RunResources
from raypack.train.elastic.restoring import check_state
from raypack.train.reporting.saving import REASON

logger = logging.getLogger(__name__)

START_TIMEOUT_VARIABLE = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"

_bases: tuple[type, ...]
_needed: tuple[str, ...]
try:
    from ray.train.v2._internal.execution.callback import (
        ControllerCallback,
        ReportCallback,
        WorkerGroupCallback,
    )

    from raypack.train.reporting.keeping import keep_newest_good, manager_of

    _bases = (ControllerCallback, WorkerGroupCallback, ReportCallback)
    _needed = (
        "after_controller_start",
        "after_controller_state_update",
        "after_report",
        "after_worker_group_start",
        "before_worker_group_shutdown",
        "before_controller_execute_failure_decision",
        "before_controller_execute_resize_decision",
    )
    HOOKED = True
except ImportError:
    _bases, _needed = (UserCallback,), ("after_report",)
    HOOKED = False
"""Whether Ray Train's own hooks are there; the public interface knows nothing of resizes."""


_FAILED = "raypack's callback failed in %s; the run goes on"  # in the controller an error would end the run


class RaypackCallback(*_bases):  # type: ignore[misc]
    """Verifies the data's state in every reported checkpoint, and saves before a planned resize.

    Each checkpoint is read back from its final storage; one that cannot be resumed from is
    logged as an error, with the file and the fault, and the newest good one is kept beyond
    ``num_to_keep`` until there is another. Before a resize that Ray Train has planned,
    every rank is asked to repeat the train function's last report, so that the new workers resume where
    the old ones stopped; if that takes too long, they resume from the last checkpoint.
    How each save went and how long the resize waited is logged and kept in ``resizes``. Before anything
    starts, a run whose workers or readers the cluster can never hold is refused, which ends it (see
    `PackedData.check`); what it waits for later is logged. Runs in Ray Train's controller and raises
    nothing else into it, unless ``RAYPACK_STRICT=1`` is set.

    Args:
        names: Names of the run's loaders; an unnamed one is None.
        save_timeout_s: How long a planned resize waits for the save, seconds; 0 does not save.
        start_timeout_s: How long Ray Train waits for the workers of a new size before it checks the cluster
            again, seconds; it sets ``RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S`` unless that is
            set. Ray's default loses 60 s whenever a node vanishes. None leaves it alone.
        check_resources: Whether a run that does not fit is refused; False lets Ray wait for nodes that
            join later.

    Raises:
        RaypackError: The installed Ray calls a hook with other parameters, also one of a subclass.
    """

    resizes: list[ResizeSave]
    """How each save before a planned resize went, in order."""

    def __init__(
        self,
        names: tuple[str | None, ...] = (None,),
        *,
        save_timeout_s: float = 60.0,
        start_timeout_s: float | None = 25.0,
        check_resources: bool = True,
    ) -> None:
        check_hooks(type(self), _bases, _needed)
        self.resizes = []
        self._names = names
        self._save_timeout_s = save_timeout_s
        self._workers: Any = None
        self._failed = False
        self._saves = 0
        self._resources = RunResources() if check_resources else None
        if start_timeout_s is not None:
            os.environ.setdefault(START_TIMEOUT_VARIABLE, f"{start_timeout_s:g}")
        if not HOOKED:
            degrade(logger, "this Ray has no hook before a resize; a resize loses the steps since a report")

    # -- reports ---------------------------------------------------------------------------------

    if HOOKED:

        @guard(logger, _FAILED, "after_report")
        def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
            """Read and check the report's checkpoint; count a save that raypack asked for."""
            self._saves += REASON in training_report.metrics
            self._verify(training_report.checkpoint)

    else:

        @guard(logger, _FAILED, "after_report")
        def after_report(  # type: ignore[misc]
            self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
        ) -> None:
            """Read and check the report's checkpoint."""
            self._verify(checkpoint)

    def _verify(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        for name in self._names:
            try:
                state = check_state(checkpoint.filesystem, checkpoint.path, name)
            except (CheckpointError, OSError) as error:
                logger.error("the checkpoint cannot be resumed from: %s", error)
            else:
                logger.info("verified %s: step %d", checkpoint.path, state.step)

    # -- the controller and its workers ----------------------------------------------------------

    def after_controller_start(self, train_run_context: Any) -> None:
        """Log where Ray Train's controller logs, and end a run that the cluster can never hold."""
        if refusal := self._begin(train_run_context):
            raise refusal

    @guard(logger, _FAILED, "after_controller_start")
    def _begin(self, context: Any) -> ResourceError | None:
        log_where_ray_train_does()
        return None if self._resources is None else self._resources.refusal(context)

    @guard(logger, _FAILED, "after_controller_state_update")
    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        """Log what is lacking while the run waits for its workers."""
        if self._resources is not None:
            self._resources.look(current_state)

    @guard(logger, _FAILED, "after_worker_group_start")
    def after_worker_group_start(self, worker_group: Any) -> None:
        """Note the workers that may be asked to save, and have the newest good checkpoint kept."""
        self._workers, self._failed = worker_group, False
        keep_newest_good(manager_of(worker_group), self._names)

    @guard(logger, _FAILED, "before_worker_group_shutdown")
    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        """Forget the workers."""
        self._workers = None

    # -- resizes ---------------------------------------------------------------------------------

    @guard(logger, _FAILED, "before_controller_execute_failure_decision")
    def before_controller_execute_failure_decision(self, failure_decision: Any) -> None:
        """Note that the next resize decision restarts workers that have failed."""
        self._failed = True

    @guard(logger, _FAILED, "before_controller_execute_resize_decision")
    def before_controller_execute_resize_decision(self, resize_decision: Any) -> None:
        """Have every rank save, and wait until the checkpoint is registered."""
        if self._workers is None or self._failed or not self._save_timeout_s:
            return
        workers, limit = resize_decision.num_workers, self._save_timeout_s
        self.resizes.append(save_before_resize(self._workers, workers, limit, lambda: self._saves))
