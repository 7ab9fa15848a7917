"""Where the ranks of one attempt meet: everyone's word for everyone, and a name for who is missing.

Ray Train's own collectives wait without end and gather nothing; a meeting has a time limit.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

import ray

from raypack.actors.rendezvous import Meeting
from raypack.errors import LoaderError

logger = logging.getLogger(__name__)

_GRACE_S = 30.0
_REMIND_S = 60.0
_REPEATED = 16
"""Last words that a rank keeps: no rank is more than one topic of a report ahead of another."""


class MeetingPoint:
    """One rank's side of a `Meeting`.

    Ray starts a dead actor again and sends it the calls it had not answered. What it had answered to
    some ranks, the others would wait for in vain: so each rank keeps its last words and repeats them
    to an actor that has begun again.

    Args:
        actor: Handle of the meeting.
        rank: The rank whose side this is.
    """

    def __init__(self, actor: Any, rank: int) -> None:
        self._actor, self.rank = actor, rank
        self._said: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=_REPEATED)
        self._asked: tuple[int, int, Any] | None = None

    def meet(self, topic: str, word: Any, *, timeout_s: float, what: str, remind: bool = True) -> list[Any]:
        """Put a word to a topic and return everyone's, by rank.

        Args:
            topic: What the ranks meet for; a new text each time.
            word: Anything small that pickles.
            timeout_s: How long to wait for the others, seconds.
            what: What the caller is doing, for the message.
            remind: Log a warning after a minute; False where a long wait is nobody's fault.

        Raises:
            LoaderError: Ranks did not come in time; they are named.
        """
        call = self._actor.meet.remote(topic, self.rank, word, timeout_s)
        if remind and timeout_s > _REMIND_S and not ray.wait([call], timeout=_REMIND_S)[0]:
            logger.warning(
                "rank %d still waits in %s, which every rank must call; it ends after %g s",
                self.rank,
                what,
                timeout_s,
            )
        try:
            words, missing = ray.get(call, timeout=timeout_s + _GRACE_S)
        except ray.exceptions.GetTimeoutError as error:  # the call was sent again, and waits anew
            raise LoaderError(
                f"rank {self.rank} waited {timeout_s + _GRACE_S:g} s in {what} for other ranks; the meeting "
                f"began again meanwhile and cannot say which: {what} must be called by every rank, equally "
                "often"
            ) from error
        if missing:
            ranks = ", ".join(map(str, missing))
            raise LoaderError(
                f"rank {self.rank} waited {timeout_s:g} s in {what} for rank {ranks}: {what} must be called "
                "by every rank, equally often; call it outside of any 'if rank == 0'"
            )
        self._keep("tell", topic, self.rank, word)
        all_words: list[Any] = words
        return all_words

    def tell(self, topic: str, word: Any) -> None:
        """Put a word to a topic for those who wait there, and wait for none of theirs."""
        ray.wait([self._actor.tell.remote(topic, self.rank, word)], timeout=_GRACE_S)
        self._keep("tell", topic, self.rank, word)

    def propose_save(self, number: int, attempt: int, step: int, slow: bool) -> Any:
        """Return a reference to the step after which all ranks may save; see `SavePoint`."""
        return self._actor.propose_save.remote(number, attempt, self.rank, step, slow)

    def answer_save(self, number: int, attempt: int, accepts: bool) -> Any:
        """Return a reference to whether all ranks save."""
        outcome = self._actor.answer_save.remote(number, attempt, self.rank, accepts)
        self._asked = number, attempt, outcome
        return outcome

    def leave(self) -> None:
        """Meet no more; the actor ends with the last rank."""
        if ray.is_initialized():
            self._actor.leave.remote(self.rank)
            self._keep("leave", self.rank)

    def watch(self) -> None:
        """Repeat this rank's words, from a thread, whenever the actor has begun again."""
        threading.Thread(target=self._watch, name="raypack-meeting", daemon=True).start()

    def _keep(self, method: str, *words: Any) -> None:
        self._said.append((method, words))

    def _repeat(self) -> None:
        """Repeat this rank's words, and the answer it has got to its last question, read or not."""
        for method, words in list(self._said):
            getattr(self._actor, method).remote(*words)
        if self._asked is not None:
            number, attempt, outcome = self._asked
            if ray.wait([outcome], timeout=0)[0]:
                self._actor.settle_save.remote(number, attempt, bool(ray.get(outcome)))

    def _watch(self) -> None:
        known, life = None, ""
        while life != known:
            known = life or None
            try:
                life = ray.get(self._actor.life.remote(known))
            except ray.exceptions.RayError as error:
                logger.debug("the meeting has ended for good: %s", error)  # who calls it next is told
                return
            if life != known:
                if known is not None:
                    logger.warning(
                        "the meeting of the ranks began again; rank %d repeats its words", self.rank
                    )
                self._repeat()  # the first time too: the life that answers may be the second


_kept: list[Any] = []
"""Handles that this process began with; the actor lives no longer than they do."""


def join_meeting(world_size: int, rank: int, *, name: str) -> MeetingPoint:
    """Start the attempt's meeting, or find the one that a peer has started.

    Args:
        world_size: Ranks that meet.
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
    actor = ray.remote(Meeting).options(**options).remote(world_size)
    _kept.append(actor)
    point = MeetingPoint(actor, rank)
    if world_size > 1:
        point.watch()
    return point
