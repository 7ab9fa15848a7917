"""Computes one result at a time in a thread, before it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Background(Generic[Key, Value]):
    """Computes a function of a key in a thread that ends with it; keeps the latest result.

    Args:
        function: A pure function; what it raises is raised again in `get`.
    """

    def __init__(self, function: Callable[[Key], Value]) -> None:
        self._function = function
        self._begun: tuple[Key, Future[Value]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Drop the pending computation: a copy computes it again."""
        return {"_function": self._function, "_begun": None}

    def begin(self, key: Key) -> None:
        """Start computing a key; a result that was started before and never fetched is dropped."""
        if self._begun is not None and self._begun[0] == key:
            return
        future: Future[Value] = Future()
        self._begun = key, future
        threading.Thread(target=self._run, args=(key, future), name="raypack-plan").start()

    def get(self, key: Key) -> Value:
        """Return the result for a key: the one started by `begin`, or one computed here."""
        begun = self._begun
        if begun is not None and begun[0] == key:
            self._begun = None
            return begun[1].result()
        return self._function(key)

    def _run(self, key: Key, future: Future[Value]) -> None:
        try:
            future.set_result(self._function(key))
        except BaseException as error:  # handed to whoever asks
            future.set_exception(error)
