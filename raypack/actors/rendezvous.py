"""The rendezvous of the ranks of one attempt, an actor; `RendezvousClient` is a rank's side of it."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Any

from raypack.actors.grace_exit import exit_after_grace
from raypack.actors.save_point import SavePoint

_ENDED = 16
"""Exchanges that are kept after all ranks have got their payloads."""


@dataclass(slots=True)
class _Exchange:
    payloads: dict[int, Any] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Rendezvous:
    """The rendezvous of ``world_size`` ranks; run as an async Ray actor, see `join_rendezvous`."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._pending: dict[str, _Exchange] = {}
        self._ended: dict[str, _Exchange] = {}
        self._save_points: dict[tuple[int, int], SavePoint] = {}
        self._left: set[int] = set()
        self._all_left = asyncio.Event()
        self._incarnation = uuid.uuid4().hex

    async def gather(
        self, key: str, rank: int, payload: Any, timeout_s: float
    ) -> tuple[list[Any], list[int]]:
        """Wait until every rank has contributed its payload under a key.

        Returns:
            All payloads by rank and no missing ranks; or none and the ranks that did not come in time.
        """
        exchange = self._exchange(key)
        exchange.payloads[rank] = payload
        if len(exchange.payloads) == self._world_size:
            exchange.complete.set()
        try:
            await asyncio.wait_for(exchange.complete.wait(), timeout_s)
        except asyncio.TimeoutError:
            if not exchange.complete.is_set():
                return [], sorted(set(range(self._world_size)) - set(exchange.payloads))
        self._taken(key, exchange, rank)
        return [exchange.payloads[r] for r in range(self._world_size)], []

    async def propose_save(self, number: int, attempt: int, rank: int, step: int, slow: bool = False) -> int:
        """Record a rank's step count and wait for the step after which all are to save; see `SavePoint`."""
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
        """Record how a try ended, from a rank that got the answer before a restart."""
        self._save_point(number, attempt).settle(outcome)

    def _save_point(self, number: int, attempt: int) -> SavePoint:
        return self._save_points.setdefault((number, attempt), SavePoint(self._world_size, attempt))

    async def post(self, key: str, rank: int, payload: Any) -> None:
        """Record a rank's payload without waiting for the others."""
        exchange = self._exchange(key)
        exchange.payloads[rank] = payload
        if len(exchange.payloads) == self._world_size:
            exchange.complete.set()
        self._taken(key, exchange, rank)

    def _exchange(self, key: str) -> _Exchange:
        return self._ended.get(key) or self._pending.setdefault(key, _Exchange())

    def _taken(self, key: str, exchange: _Exchange, rank: int) -> None:
        """Record that a rank has its payloads; keep the last exchanges, for calls that are sent again."""
        exchange.taken.add(rank)
        if len(exchange.taken) == self._world_size and key in self._pending:
            self._ended[key] = self._pending.pop(key)
            if len(self._ended) > _ENDED:
                del self._ended[next(iter(self._ended))]

    async def leave(self, rank: int) -> None:
        """Record that a rank has left; the actor exits with the last one."""
        self._left.add(rank)
        if len(self._left) == self._world_size:
            self._all_left.set()
            self._ending = asyncio.create_task(exit_after_grace())

    async def incarnation(self, known: str | None) -> str:
        """Return the id of this incarnation; to a caller that knows it, only once all ranks have left."""
        if known == self._incarnation:
            await self._all_left.wait()
        return self._incarnation
