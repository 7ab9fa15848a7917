"""A rank's side of the rendezvous: every rank gets every rank's payload, and a missing rank is named.

Ray Train's own collectives have no timeout and do not gather; a rendezvous does both.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

import ray

from raypack.actors.rendezvous import Rendezvous
from raypack.errors import LoaderError

logger = logging.getLogger(__name__)

_GRACE_S = 30.0
_REMIND_S = 60.0
_REPEATED = 16
"""Last payloads that a rank keeps: no rank is more than one key of a report ahead of another."""


class RendezvousClient:
    """One rank's side of a `Rendezvous`.

    Ray restarts a dead actor and resends the calls that it had not answered, but not those that it had
    answered to some ranks, so the other ranks would wait in vain: each rank therefore keeps its last
    payloads and sends them again to an actor that has restarted.

    Args:
        actor: Handle of the rendezvous.
        rank: The rank whose side this is.
    """

    def __init__(self, actor: Any, rank: int) -> None:
        self._actor, self.rank = actor, rank
        self._sent: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=_REPEATED)
        self._pending_save: tuple[int, int, Any] | None = None

    def gather(
        self, key: str, payload: Any, *, timeout_s: float, what: str, remind: bool = True
    ) -> list[Any]:
        """Contribute a payload under a key and return every rank's, in order of rank.

        Args:
            key: What the payloads are for; a new text each time.
            payload: Anything small that pickles.
            timeout_s: How long to wait for the others, seconds.
            what: What the caller is doing, for the message.
            remind: Log a warning after a minute; False where a long wait is normal.

        Raises:
            LoaderError: Ranks did not come in time; they are named.
        """
        call = self._actor.gather.remote(key, self.rank, payload, timeout_s)
        if remind and timeout_s > _REMIND_S and not ray.wait([call], timeout=_REMIND_S)[0]:
            logger.warning(
                "rank %d still waits in %s, which every rank must call; it ends after %g s",
                self.rank,
                what,
                timeout_s,
            )
        try:
            payloads, missing = ray.get(call, timeout=timeout_s + _GRACE_S)
        except ray.exceptions.GetTimeoutError as error:  # the call was sent again, and waits anew
            raise LoaderError(
                f"rank {self.rank} waited {timeout_s + _GRACE_S:g} s in {what} for other ranks; the "
                "rendezvous has restarted meanwhile and cannot name them: "
                f"{what} must be called by every rank, equally "
                "often"
            ) from error
        if missing:
            ranks = ", ".join(map(str, missing))
            raise LoaderError(
                f"rank {self.rank} waited {timeout_s:g} s in {what} for rank {ranks}: {what} must be called "
                "by every rank, equally often; call it outside of any 'if rank == 0'"
            )
        self._keep("post", key, self.rank, payload)
        all_payloads: list[Any] = payloads
        return all_payloads

    def post(self, key: str, payload: Any) -> None:
        """Contribute a payload under a key without waiting for those of others."""
        ray.wait([self._actor.post.remote(key, self.rank, payload)], timeout=_GRACE_S)
        self._keep("post", key, self.rank, payload)

    def propose_save(self, number: int, attempt: int, step: int, slow: bool) -> Any:
        """Return a reference to the step after which all ranks may save; see `SavePoint`."""
        return self._actor.propose_save.remote(number, attempt, self.rank, step, slow)

    def answer_save(self, number: int, attempt: int, accepts: bool) -> Any:
        """Return a reference to whether all ranks save."""
        outcome = self._actor.answer_save.remote(number, attempt, self.rank, accepts)
        self._pending_save = number, attempt, outcome
        return outcome

    def leave(self) -> None:
        """Leave the rendezvous; the actor ends with the last rank."""
        if ray.is_initialized():
            self._actor.leave.remote(self.rank)
            self._keep("leave", self.rank)

    def watch(self) -> None:
        """Send this rank's payloads again, from a thread, whenever the actor has restarted."""
        threading.Thread(target=self._watch, name="raypack-rendezvous", daemon=True).start()

    def _keep(self, method: str, *payloads: Any) -> None:
        self._sent.append((method, payloads))

    def _repeat(self) -> None:
        """Send this rank's payloads again, and the outcome of its last save point if it has arrived."""
        for method, payloads in list(self._sent):
            getattr(self._actor, method).remote(*payloads)
        if self._pending_save is not None:
            number, attempt, outcome = self._pending_save
            if ray.wait([outcome], timeout=0)[0]:
                self._actor.settle_save.remote(number, attempt, bool(ray.get(outcome)))

    def _watch(self) -> None:
        known, incarnation = None, ""
        while incarnation != known:
            known = incarnation or None
            try:
                incarnation = ray.get(self._actor.incarnation.remote(known))
            except ray.exceptions.RayError as error:
                logger.debug("the rendezvous has ended for good: %s", error)  # the next call raises it
                return
            if incarnation != known:
                if known is not None:
                    logger.warning(
                        "the rendezvous of the ranks began again; rank %d sends its payloads again", self.rank
                    )
                self._repeat()  # the first time too: the actor may have restarted before the first call


_kept: list[Any] = []
"""Handles of the actors that this process started; Ray ends an actor once they are gone."""


def join_rendezvous(world_size: int, rank: int, *, name: str) -> RendezvousClient:
    """Start the attempt's rendezvous, or find the one that a peer has started.

    Args:
        world_size: Ranks that take part.
        rank: The caller's rank.
        name: The actor's name.
    """
    options = {
        "name": name,
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": 10_000,
    }
    actor = ray.remote(Rendezvous).options(**options).remote(world_size)
    _kept.append(actor)
    point = RendezvousClient(actor, rank)
    if world_size > 1:
        point.watch()
    return point
