"""Where the ranks of one attempt meet: everyone's word for everyone, and a name for who is missing.

Ray Train's own collectives wait without end and gather nothing; a meeting has a time limit.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import ray

from raypack.actors.ending import end_soon
from raypack.actors.save_point import SavePoint
from raypack.errors import LoaderError

logger = logging.getLogger(__name__)

_GRACE_S = 30.0
_REMIND_S = 60.0


@dataclass(slots=True)
class _Topic:
    words: dict[int, Any] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Meeting:
    """The meeting point of ``world_size`` ranks; run as an async Ray actor, see `start_meeting`."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._topics: dict[str, _Topic] = {}
        self._save_points: dict[tuple[int, int], SavePoint] = {}
        self._left: set[int] = set()

    async def meet(self, topic: str, rank: int, word: Any, timeout_s: float) -> tuple[list[Any], list[int]]:
        """Wait until every rank has put its word to a topic.

        Returns:
            All words by rank and no missing ranks; or no words and the ranks that did not come in time.
        """
        spot = self._topics.setdefault(topic, _Topic())
        spot.words[rank] = word
        if len(spot.words) == self._world_size:
            spot.complete.set()
        try:
            await asyncio.wait_for(spot.complete.wait(), timeout_s)
        except asyncio.TimeoutError:
            if not spot.complete.is_set():
                return [], sorted(set(range(self._world_size)) - set(spot.words))
        spot.taken.add(rank)
        if len(spot.taken) == self._world_size:
            self._topics.pop(topic, None)
        return [spot.words[r] for r in range(self._world_size)], []

    async def propose_save(self, number: int, attempt: int, rank: int, step: int, slow: bool = False) -> int:
        """Tell where a rank stands and wait for the step after which all are to save; see `SavePoint`."""
        for (other, earlier), point in self._save_points.items():
            if (other, earlier) < (number, attempt):
                point.supersede()
        return await self._save_point(number, attempt).propose(rank, step, slow)

    async def answer_save(self, number: int, attempt: int, rank: int, accepts: bool) -> bool:
        """Accept or refuse the proposed step, and wait for the outcome."""
        point = self._save_point(number, attempt)
        point.answer(rank, accepts)
        return await point.wait()

    def _save_point(self, number: int, attempt: int) -> SavePoint:
        return self._save_points.setdefault((number, attempt), SavePoint(self._world_size, attempt))

    async def tell(self, topic: str, rank: int, word: Any) -> None:
        """Take a rank's word to a topic; the rank does not wait for those of others."""
        spot = self._topics.setdefault(topic, _Topic())
        spot.words[rank] = word
        spot.taken.add(rank)
        if len(spot.words) == self._world_size:
            spot.complete.set()
        if len(spot.taken) == self._world_size:
            self._topics.pop(topic, None)

    async def leave(self, rank: int) -> None:
        """Learn that a rank meets no more; the actor ends with the last of them."""
        self._left.add(rank)
        if len(self._left) == self._world_size:
            self._ending = asyncio.create_task(end_soon())


_kept: list[Any] = []
"""Handles that this process began with; the actor lives no longer than they do."""


def start_meeting(world_size: int, *, name: str) -> Any:
    """Start the attempt's meeting point, or find the one that a peer has started."""
    options = {
        "name": name,
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": 10_000,
    }
    handle = ray.remote(Meeting).options(**options).remote(world_size)
    _kept.append(handle)
    return handle


def meet(
    actor: Any, topic: str, rank: int, word: Any, *, timeout_s: float, what: str, remind: bool = True
) -> list[Any]:
    """Put a word to a topic and return everyone's, by rank.

    Args:
        actor: The meeting's handle.
        topic: What the ranks meet for; a new text each time.
        rank: The caller's data rank.
        word: Anything small that pickles.
        timeout_s: How long to wait for the others, seconds.
        what: What the caller is doing, for the message.
        remind: Log a warning after a minute; False where a long wait is nobody's fault.

    Raises:
        LoaderError: Ranks did not come in time; they are named.
    """
    call = actor.meet.remote(topic, rank, word, timeout_s)
    if remind and timeout_s > _REMIND_S and not ray.wait([call], timeout=_REMIND_S)[0]:
        logger.warning(
            "rank %d still waits in %s, which every rank must call; it ends after %g s", rank, what, timeout_s
        )
    words, missing = ray.get(call, timeout=timeout_s + _GRACE_S)
    if missing:
        ranks = ", ".join(map(str, missing))
        raise LoaderError(
            f"rank {rank} waited {timeout_s:g} s in {what} for rank {ranks}: {what} must be called by "
            "every rank, equally often; call it outside of any 'if rank == 0'"
        )
    return words


def tell(actor: Any, topic: str, rank: int, word: Any) -> None:
    """Put a word to a topic for those who wait there, and wait for none of theirs.

    Args:
        actor: The meeting's handle.
        topic: What the ranks meet for.
        rank: The caller's data rank.
        word: Anything small that pickles.
    """
    ray.wait([actor.tell.remote(topic, rank, word)], timeout=_GRACE_S)
