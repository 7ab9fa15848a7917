"""The tracker of attempts at chunks: it counts them, knows which are running, and closes with the job."""

from __future__ import annotations

import time
from typing import Any

import ray

ATTEMPTS = 4
_DRAIN_S = 15.0


class AttemptTracker:
    """Counts the attempts at each chunk and those that are under way."""

    def __init__(self) -> None:
        self._attempts: dict[int, int] = {}
        self._inside: set[int] = set()
        self._closed = False

    def enter(self, chunk: int) -> int:
        """Return which attempt at the chunk this is, from 1; 0 when the job has ended."""
        if self._closed:
            return 0
        self._attempts[chunk] = self._attempts.get(chunk, 0) + 1
        self._inside.add(chunk)
        return self._attempts[chunk]

    def leave(self, chunk: int) -> None:
        """Record that nothing more is written for the chunk."""
        self._inside.discard(chunk)

    def close(self) -> int:
        """Refuse new attempts from now on; return how many are still running."""
        self._closed = True
        return len(self._inside)


def start_tracker() -> Any:
    """Start a tracker; `drain` ends it."""
    return ray.remote(num_cpus=0)(AttemptTracker).remote()


def drain(tracker: Any) -> None:
    """Close the gate, wait for those inside and end it, so that nothing is written behind the caller's back.

    A task whose worker was killed never leaves, so the wait has an end.
    """
    deadline = time.monotonic() + _DRAIN_S
    try:
        while ray.get(tracker.close.remote(), timeout=_DRAIN_S) and time.monotonic() < deadline:
            time.sleep(0.05)
        ray.kill(tracker)
    except ray.exceptions.RayError:
        # Ray itself is gone, and its workers with it.
        return
