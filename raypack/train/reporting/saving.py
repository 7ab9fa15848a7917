"""Saving before the run is stopped: at a planned resize, or when a node is about to be taken away.

A save is requested in each worker's process, at any time. The loaders there check for a request after each
step, agree on one step (see `SavePoint`), and repeat the train function's last report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from raypack.actors.rendezvous_client import RendezvousClient
from raypack.guards import degrade

logger = logging.getLogger(__name__)

RESIZE, PREEMPTION = "resize", "preemption"
REASON = "raypack_saved_for"
"""The metric that names why a report was made by raypack itself."""
_MOST_ATTEMPTS = 6
_POLL_S = 0.2
_SLOW_S = 1.0
"""A step of so many seconds is longer than an agreement takes."""


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A request that all ranks save soon; each is an object of its own."""

    reason: str
    """``resize`` or ``preemption``."""
    hold_s: float = 0.0
    """How long a rank waits after the save to be stopped, so that it trains nothing that is lost."""


@dataclass(slots=True)
class _Process:
    """What the loaders of this process share with the callback that asks them to save."""

    request: SaveRequest | None = None
    ready_loaders: int = 0
    """Loaders that are open and can repeat a report."""


_process = _Process()


def ask_to_save(request: SaveRequest) -> bool:
    """Hand a request to this process; run in each worker's process by the callback.

    Returns:
        Whether a loader here can answer it: one is open and its train function has reported before.
    """
    if _process.ready_loaders:
        _process.request = request
    return bool(_process.ready_loaders)


class Saver:
    """One loader's part in saving on request.

    Args:
        rendezvous: This rank's side of the attempt's rendezvous.
    """

    def __init__(self, rendezvous: RendezvousClient) -> None:
        self._rendezvous = rendezvous
        self._report: Callable[[dict[str, Any]], None] | None = None
        self._request: SaveRequest | None = None
        self._last_request: SaveRequest | None = None
        self._nodes: frozenset[str] = frozenset()
        self._saves = 0
        self._attempt = 0
        self._proposal: Any = None
        self._step: int | None = None
        self._outcome: Any = None
        self._last = time.monotonic()
        self._took = 0.0

    def remember(self, report: Callable[[dict[str, Any]], None] | None) -> None:
        """Keep how the train function reports, to do it again with more metrics; None: it cannot be."""
        _process.ready_loaders += (report is not None) - (self._report is not None)
        self._report = report

    def close(self) -> None:
        """Accept no further requests."""
        self.remember(None)

    def boundary(self, step: int) -> None:
        """Look for a request between two steps, and save where all ranks have agreed to.

        Args:
            step: Steps done.
        """
        now = time.monotonic()
        self._took, self._last = now - self._last, now
        if self._report is None:
            return
        if self._request is None:
            self._request = self._new_request()
            if self._request is None:
                return
            self._attempt = 0
            self._propose(step)
        if self._agreed(step):
            self._save(self._request)

    def _new_request(self) -> SaveRequest | None:
        if _process.request is not self._last_request:
            self._last_request = _process.request
            return self._last_request
        nodes = preempted_nodes()
        if nodes <= self._nodes:
            return None
        self._nodes = nodes
        return SaveRequest(PREEMPTION)

    def _propose(self, step: int) -> None:
        # The number of saves is the same on all ranks, whichever request each saw first.
        self._proposal = self._rendezvous.propose_save(
            self._saves, self._attempt, step, self._took >= _SLOW_S
        )
        self._step = None

    def _agreed(self, step: int) -> bool:
        """Go on with the agreement without waiting, but where this rank has reached the step."""
        if self._step is None:
            if not ray.wait([self._proposal], timeout=0)[0]:
                return False
            self._step = int(ray.get(self._proposal))
            self._outcome = self._rendezvous.answer_save(self._saves, self._attempt, step <= self._step)
        if step < self._step:
            return False
        if ray.get(self._outcome):
            return True
        self._attempt += 1
        if self._attempt == _MOST_ATTEMPTS:
            logger.warning("rank %d: the ranks found no common step to save at", self._rendezvous.rank)
            self._end()
        else:
            self._propose(step)
        return False

    def _save(self, request: SaveRequest) -> None:
        assert self._report is not None
        self._report({REASON: request.reason})
        self._last_request, self._nodes = (
            _process.request,
            self._nodes | preempted_nodes(),
        )  # this save serves them too
        self._end()
        deadline = time.monotonic() + request.hold_s
        while time.monotonic() < deadline:  # the worker is stopped here
            time.sleep(_POLL_S)
        if request.hold_s:
            logger.warning(
                "saved for a %s that did not come within %g s; going on", request.reason, request.hold_s
            )

    def _end(self) -> None:
        self._request = None
        self._saves += 1


def preempted_nodes() -> frozenset[str]:
    """Return the nodes of this run that are about to be taken away, as far as this worker knows.

    Ray Train's public question is a barrier; what it answers with lies in the worker's context, and
    where that moves, nothing is known of preemptions here. Outside of a worker of Ray Train there are none.
    """
    try:
        from ray.train.v2._internal.execution.context import get_train_context

        try:
            context = get_train_context()
        except RuntimeError:
            return frozenset()
        info = context.preemption_context.preemption_info
        return frozenset(info.preempted_node_to_ranks) if info is not None else frozenset()
    except (ImportError, AttributeError) as error:
        degrade(logger, "cannot see which nodes will be taken away, no save before: %s", error, once=True)
        return frozenset()
