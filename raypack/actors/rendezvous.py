"""The actor in which the ranks of one attempt meet; `MeetingPoint` is a rank's side of it."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Any

from raypack.actors.grace_exit import end_soon
from raypack.actors.save_point import SavePoint

_ENDED = 16
"""Topics that are kept after all ranks have taken their words."""


@dataclass(slots=True)
class _Topic:
    words: dict[int, Any] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Meeting:
    """The meeting point of ``world_size`` ranks; run as an async Ray actor, see `join_meeting`."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._topics: dict[str, _Topic] = {}
        self._ended: dict[str, _Topic] = {}
        self._save_points: dict[tuple[int, int], SavePoint] = {}
        self._left: set[int] = set()
        self._all_left = asyncio.Event()
        self._life = uuid.uuid4().hex

    async def meet(self, topic: str, rank: int, word: Any, timeout_s: float) -> tuple[list[Any], list[int]]:
        """Wait until every rank has put its word to a topic.

        Returns:
            All words by rank and no missing ranks; or no words and the ranks that did not come in time.
        """
        spot = self._topic(topic)
        spot.words[rank] = word
        if len(spot.words) == self._world_size:
            spot.complete.set()
        try:
            await asyncio.wait_for(spot.complete.wait(), timeout_s)
        except asyncio.TimeoutError:
            if not spot.complete.is_set():
                return [], sorted(set(range(self._world_size)) - set(spot.words))
        self._taken(topic, spot, rank)
        return [spot.words[r] for r in range(self._world_size)], []

    async def propose_save(self, number: int, attempt: int, rank: int, step: int, slow: bool = False) -> int:
        """Tell where a rank stands and wait for the step after which all are to save; see `SavePoint`."""
        for (other, earlier), point in list(self._save_points.items()):
            if (other, earlier) < (number, attempt):
                point.supersede()
            if other < number - 1:
                del self._save_points[other, earlier]
        return await self._save_point(number, attempt).propose(rank, step, slow)

    async def answer_save(self, number: int, attempt: int, rank: int, accepts: bool) -> bool:
        """Accept or refuse the proposed step, and wait for the outcome."""
        point = self._save_point(number, attempt)
        point.answer(rank, accepts)
        return await point.wait()

    async def settle_save(self, number: int, attempt: int, outcome: bool) -> None:
        """Learn how a try ended, from a rank that was told."""
        self._save_point(number, attempt).settle(outcome)

    def _save_point(self, number: int, attempt: int) -> SavePoint:
        return self._save_points.setdefault((number, attempt), SavePoint(self._world_size, attempt))

    async def tell(self, topic: str, rank: int, word: Any) -> None:
        """Take a rank's word to a topic; the rank does not wait for those of others."""
        spot = self._topic(topic)
        spot.words[rank] = word
        if len(spot.words) == self._world_size:
            spot.complete.set()
        self._taken(topic, spot, rank)

    def _topic(self, topic: str) -> _Topic:
        return self._ended.get(topic) or self._topics.setdefault(topic, _Topic())

    def _taken(self, topic: str, spot: _Topic, rank: int) -> None:
        """Learn that a rank waits no more; keep the last topics, for calls that are put again."""
        spot.taken.add(rank)
        if len(spot.taken) == self._world_size and topic in self._topics:
            self._ended[topic] = self._topics.pop(topic)
            if len(self._ended) > _ENDED:
                del self._ended[next(iter(self._ended))]

    async def leave(self, rank: int) -> None:
        """Learn that a rank meets no more; the actor ends with the last of them."""
        self._left.add(rank)
        if len(self._left) == self._world_size:
            self._all_left.set()
            self._ending = asyncio.create_task(end_soon())

    async def life(self, known: str | None) -> str:
        """Return a name of this actor's present life: to who knows it already, when all ranks have left."""
        if known == self._life:
            await self._all_left.wait()
        return self._life
