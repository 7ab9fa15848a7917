"""Bounds what the ranks' records may make a reader allocate, before they are combined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from raypack.batching.rank.state import TokenBatchState
from raypack.errors import CheckpointError

MOST_POSITIONS = 1 << 24
"""Positions of a ragged head that are put together where no source bounds them: 128 MiB."""


def most_positions(examples: int | None) -> int:
    """Return how many positions a head may have.

    Args:
        examples: Examples of the source that is open; None where none is.
    """
    return max(MOST_POSITIONS, examples or 0)


def check_claims(records: Iterable[object], most: int) -> None:
    """Refuse records that say they hold more than may be unpacked.

    Args:
        records: What the ranks' files hold, unchecked.
        most: Positions that all of them may have.

    Raises:
        CheckpointError: They have more, or an order of their own, which a run's never have.
    """
    claimed = 0
    for record in records:
        sampler = _field(record, "sampler")
        if _field(sampler, "order") is not None:
            raise CheckpointError("the ranks' records must have no explicit order: a run's order is computed")
        count = _field(_field(sampler, "head"), "count")
        claimed += count if type(count) is int else 0  # anything else is refused when it is read
    _check(claimed, most, "hold")


def check_skew(states: Iterable[TokenBatchState], most: int) -> None:
    """Refuse records whose ranks are so far apart that what is left between them does not fit.

    Args:
        states: The records of all ranks.
        most: Positions that may be left between the ranks.

    Raises:
        CheckpointError: There are more.
    """
    samplers = [state.sampler for state in states]
    furthest = max((sampler.committed for sampler in samplers), default=0)
    between = 0
    for sampler in samplers:
        stop = min(max(furthest, len(sampler.head)), sampler.scope.shard_size)
        between += max(0, stop - sampler.committed)
    _check(between, most, "leave")


def _field(record: object, name: str) -> Any:
    return record.get(name) if isinstance(record, Mapping) else None


def _check(positions: int, most: int, verb: str) -> None:
    if positions > most:
        raise CheckpointError(
            f"the ranks' records {verb} {positions} scattered positions of the epoch, more than the {most} "
            "that are read without a source of so many examples; give the source"
        )
