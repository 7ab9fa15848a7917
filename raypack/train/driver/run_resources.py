"""Checks a run's resources in Ray Train's controller: refuses it at its start, warns while it waits."""

from __future__ import annotations

import time
from typing import Any

from raypack.errors import ResourceError
from raypack.train.driver.need import Need
from raypack.train.driver.resources import check_resources
from raypack.train.integrations.data_config import PackedDataConfig
from raypack.train.recipe import recipes_in

AGAIN_S = 30.0
"""Seconds between two warnings about the same wait."""
_WAITING = ("InitializingState", "SchedulingState", "ReschedulingState", "RestartingState")


class RunResources:
    """Compares one run's need with the cluster, at its start and whenever its workers start anew."""

    def __init__(self) -> None:
        self._need: Need | None = None
        self._told = 0.0

    def refusal(self, context: Any) -> ResourceError | None:
        """Return why the cluster can never hold a run that begins, or None.

        The recipes are those in ``train_loop_config`` and of a `PackedDataConfig`; a recipe that the train
        function makes is not known here, and `get_loader` looks at it.

        Args:
            context: Ray Train's context of the run.
        """
        config = context.dataset_config
        recipes = recipes_in(context.train_loop_config)
        recipes += recipes_in(config.recipes if isinstance(config, PackedDataConfig) else {})
        self._need = Need.of(context.scaling_config, recipes)
        self._told = time.monotonic()
        try:
            check_resources(self._need)
        except ResourceError as error:
            return error
        return None

    def look(self, state: Any) -> None:
        """Log what is lacking while the controller waits for workers, every half minute."""
        waits = type(state).__name__ in _WAITING
        if self._need is not None and waits and time.monotonic() >= self._told + AGAIN_S:
            self._told = time.monotonic()
            check_resources(self._need, ends=False)
