"""What raypack adds to ``fit`` of Ray Train's trainers in the driver.

Ray Train has no driver hook for the end of a run, and calls no callback in local mode. So two methods of
its trainers' base class are wrapped when `raypack.train` is imported: `fit` warns at its end of steps that
no checkpoint holds, and local mode gets the run's storage. Trainers whose train function opens no loader
of raypack see neither, except for the run's last checkpoint in local mode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raypack.guards import guard
from raypack.train.driver.local_mode import run_locally
from raypack.train.reporting.unsaved import forget, log_unsaved

logger = logging.getLogger(__name__)

_MARK = "_wrapped_by_raypack"


def wrap_trainers() -> None:
    """Wrap `fit` and the local mode of Ray Train's trainers; once, however often it is called."""
    if hasattr(DataParallelTrainer, _MARK):
        return
    DataParallelTrainer.fit = _telling(DataParallelTrainer.fit)
    local = DataParallelTrainer._initialize_and_run_local_controller
    DataParallelTrainer._initialize_and_run_local_controller = wraps(local)(
        lambda trainer, train_func: run_locally(local, trainer, train_func)
    )
    setattr(DataParallelTrainer, _MARK, True)


def _telling(fit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(fit)
    def telling(trainer: Any) -> Any:
        run = trainer.run_config.name
        forget(run)
        failed = True
        try:
            result = fit(trainer)
            failed = False
            return result
        finally:
            with guard(logger, "raypack cannot say which steps of run %r are in no checkpoint", run):
                log_unsaved(run, failed=failed)

    return telling
