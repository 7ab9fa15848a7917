"""Ranks that wait for others because a step's batches do not divide among them."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

_TOLERATED = 20
"""One empty micro-batch in so many is tolerated: 5 %."""


def idle_share(batches_per_step: int, world_size: int) -> float:
    """Return the part of all micro-batches of a full step that are empty, 0.0 to 1.0."""
    slots = _slots(batches_per_step, world_size)
    return (slots - batches_per_step) / slots


def next_good(batches_per_step: int, world_size: int) -> int:
    """Return the least number of batches, from ``batches_per_step`` on, that leaves at most 5 % idle."""
    slots = _slots(batches_per_step, world_size)
    return max(batches_per_step, slots - slots // _TOLERATED)


def _slots(batches: int, world_size: int) -> int:
    return -(-batches // world_size) * world_size


def warn_of_idle(batches_per_step: int, world_size: int) -> None:
    """Log one warning where more than 5 % of the micro-batches are empty."""
    good = next_good(batches_per_step, world_size)
    if good != batches_per_step:
        logger.warning(
            "%.0f%% of the micro-batches are empty: %d batches a step do not divide among %d workers; "
            "batches_per_step=%d would fill them. Steps stay the same at any number of workers.",
            100 * idle_share(batches_per_step, world_size),
            batches_per_step,
            world_size,
            good,
        )
