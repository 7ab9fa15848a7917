"""Runs while a train loop waits for a batch: reports commits to the planner again, and finds the fault."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import ray

from raypack.errors import StreamError
from raypack.train.driver.need import Cluster
from raypack.train.driver.resources import reader_numbers
from raypack.train.elastic.worker_context import WorkerContext

logger = logging.getLogger(__name__)

START_TIMEOUT_VARIABLE = "RAYPACK_START_TIMEOUT_S"
_START_TIMEOUT_S = 60.0
_LOST_TIMEOUT_S = 60.0
_REMIND_S = 60.0


class StallMonitor:
    """Called about once a second while the stream gives nothing.

    Args:
        worker: This worker's context.
        node_planner: Handle of the node's planner.
        advance: Sends the planner what is committed.
    """

    def __init__(self, worker: WorkerContext, node_planner: Any, advance: Callable[[], None]) -> None:
        self._worker, self._planner, self._advance = worker, node_planner, advance
        self._start_timeout = float(os.environ.get(START_TIMEOUT_VARIABLE, _START_TIMEOUT_S))
        self._reminded = 0.0

    def __call__(self, waited_s: float) -> None:
        """Check once.

        Args:
            waited_s: Seconds since the loop began to wait for this batch.

        Raises:
            StreamError: The reader never got a CPU, or the planner is lost.
        """
        self._advance()
        if waited_s < self._reminded:
            self._reminded = 0.0
        if waited_s >= self._start_timeout and self._asked() == 0:
            raise StreamError(self._starved(waited_s))
        if waited_s >= self._reminded + _REMIND_S:
            self._reminded = waited_s
            logger.warning("rank %d has waited %.0f s for its next batch", self._worker.rank, waited_s)

    def _asked(self) -> int:
        try:
            status = ray.get(self._planner.status.remote(self._worker.rank), timeout=_LOST_TIMEOUT_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise StreamError(f"rank {self._worker.rank}: the planner actor is lost: {error}") from error
        return int(status["asked"])

    def _starved(self, waited_s: float) -> str:
        free = ray.available_resources().get("CPU", 0.0)
        return (
            f"rank {self._worker.rank} has waited {waited_s:.0f} s and Ray has not started its reader, with "
            f"{free:g} CPUs free: {reader_numbers(self._worker, Cluster.current())}. "
            f"{START_TIMEOUT_VARIABLE} sets a longer wait."
        )
