"""A save before a planned resize: every rank is asked, and the controller waits for the checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from raypack.train.reporting.saving import RESIZE, SaveRequest, ask_to_save

logger = logging.getLogger(__name__)

_POLL_S = 0.05

SAVED, UNABLE, FAILED, ENDED, LATE = "saved", "unable", "failed", "ended", "late"
_TOLD = {
    SAVED: (logging.INFO, "saved"),
    UNABLE: (logging.INFO, "no save: the train function has not reported yet, or runs no loader"),
    FAILED: (logging.WARNING, "no save: a rank failed"),
    ENDED: (logging.INFO, "no save: the train function has ended"),
    LATE: (
        logging.WARNING,
        "no save within save_timeout_s; resizing from the last checkpoint. A save takes up to three steps: "
        "give more time where steps are long",
    ),
}


@dataclass(frozen=True, slots=True)
class ResizeSave:
    """How the save before one planned resize went."""

    workers: int
    """Workers after the resize."""
    outcome: str
    """``saved``, ``unable`` (no loader that has reported), ``failed``, ``ended`` or ``late``."""
    waited_s: float
    """How long the resize waited for it, seconds."""


def save_before_resize(
    group: Any, workers: int, timeout_s: float, count_saves: Callable[[], int]
) -> ResizeSave:
    """Have every rank of a worker group save, wait until the checkpoint is registered, and log it.

    Args:
        group: Ray Train's worker group.
        workers: Workers after the resize.
        timeout_s: How long to wait, seconds.
        count_saves: Returns how many saves are registered; polling the group registers them.
    """
    began = time.monotonic()
    outcome = _outcome(group, timeout_s, count_saves)
    save = ResizeSave(workers, outcome, time.monotonic() - began)
    level, told = _TOLD[outcome]
    logger.log(
        level, "before the resize to %d workers: %s; the resize waited %.2f s", workers, told, save.waited_s
    )
    return save


def _outcome(group: Any, timeout_s: float, count_saves: Callable[[], int]) -> str:
    wanted, deadline = count_saves() + 1, time.monotonic() + timeout_s
    try:
        able = group.execute(ask_to_save, SaveRequest(RESIZE, hold_s=timeout_s))
    except ray.exceptions.RayActorError as error:  # a worker that has died since the last poll
        logger.warning("a rank cannot be asked to save: %s", error)
        return FAILED
    if not all(able):
        return UNABLE
    while time.monotonic() < deadline:
        status = group.poll_status(timeout=1)  # registers what the ranks report
        if count_saves() >= wanted:
            return SAVED
        if status.errors:
            logger.warning("a rank failed while it was to save: %s", status.errors)
            return FAILED
        if status.finished:
            return ENDED
        time.sleep(_POLL_S)
    return LATE
