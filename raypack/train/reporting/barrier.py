"""The phases of a report, done by all ranks or by none: when one rank fails, all fail at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from raypack.actors.rendezvous_client import RendezvousClient
from raypack.errors import LoaderError

_Result = TypeVar("_Result")


class ReportBarrier:
    """The ranks of one report.

    Args:
        rendezvous: This rank's side of the attempt's rendezvous.
        report: Number of the report in the attempt; the same on all ranks.
        timeout_s: How long a rank waits for the others before it names who is missing, seconds.
    """

    def __init__(self, rendezvous: RendezvousClient, report: int, timeout_s: float) -> None:
        self._rendezvous, self._report, self._timeout_s = rendezvous, report, timeout_s

    def share(self, key: str, payload: Any) -> list[Any]:
        """Return every rank's payload, by rank."""
        return self.do(key, lambda: payload)

    def do(self, key: str, work: Callable[[], _Result], *, timeout_s: float | None = None) -> list[_Result]:
        """Do this rank's part and return what that of every rank gave, by rank.

        Args:
            key: What is done; another one each time in a report.
            work: This rank's part; what it returns must pickle.
            timeout_s: How long to wait for others whose work takes long; None is the report's own limit.

        Raises:
            LoaderError: A rank did not come, or failed; it is named, with its error.
            Exception: What ``work`` raised on this rank, after the others were notified.
        """
        try:
            mine = work()
        except Exception as error:
            self.fail(key, f"{type(error).__name__}: {error}")
            raise
        payloads = self._rendezvous.gather(
            self._name(key),
            {"done": mine},
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
            what="report",
            remind=timeout_s is None,
        )
        for rank, other in enumerate(payloads):
            if "failed" in other:
                raise LoaderError(
                    f"rank {rank} failed in this report, so that no rank registers it and the checkpoint "
                    f"before it stays the last: {other['failed']}"
                )
        return [other["done"] for other in payloads]

    def fail(self, key: str, why: str) -> None:
        """Notify the other ranks, which may be waiting, that this rank has failed."""
        self._rendezvous.post(self._name(key), {"failed": why})

    def _name(self, key: str) -> str:
        return f"{key} {self._report}"
