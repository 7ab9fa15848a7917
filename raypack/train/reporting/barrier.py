"""A report's steps, taken by all ranks or by none: where one rank fails, all of them learn it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from raypack.actors.rendezvous_client import MeetingPoint
from raypack.errors import LoaderError

_Result = TypeVar("_Result")


class Together:
    """The ranks of one report.

    Args:
        meeting: This rank's side of the attempt's meeting.
        report: Number of the report in the attempt; the same on all ranks.
        timeout_s: How long a rank waits for the others before it names who is missing, seconds.
    """

    def __init__(self, meeting: MeetingPoint, report: int, timeout_s: float) -> None:
        self._meeting, self._report, self._timeout_s = meeting, report, timeout_s

    def share(self, topic: str, word: Any) -> list[Any]:
        """Return every rank's word, by rank."""
        return self.do(topic, lambda: word)

    def do(self, topic: str, work: Callable[[], _Result], *, timeout_s: float | None = None) -> list[_Result]:
        """Do this rank's part and return what that of every rank gave, by rank.

        Args:
            topic: What is done; another one each time in a report.
            work: This rank's part; what it returns must pickle.
            timeout_s: How long to wait for others whose work takes long; None is the report's own limit.

        Raises:
            LoaderError: A rank did not come, or failed; it is named, with its error.
            Exception: What ``work`` raised on this rank, after the others were told.
        """
        try:
            mine = work()
        except Exception as error:
            self.fail(topic, f"{type(error).__name__}: {error}")
            raise
        words = self._meeting.meet(
            self._name(topic),
            {"done": mine},
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
            what="report",
            remind=timeout_s is None,
        )
        for rank, other in enumerate(words):
            if "failed" in other:
                raise LoaderError(
                    f"rank {rank} failed in this report, so that no rank registers it and the checkpoint "
                    f"before it stays the last: {other['failed']}"
                )
        return [other["done"] for other in words]

    def fail(self, topic: str, why: str) -> None:
        """Tell the others, who may be waiting, that this rank does not do its part."""
        self._meeting.tell(self._name(topic), {"failed": why})

    def _name(self, topic: str) -> str:
        return f"{topic} {self._report}"
