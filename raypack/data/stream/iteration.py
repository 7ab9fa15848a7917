"""Iterates over a dataset without leaking a thread of Ray Data."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any


def closing_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield what Ray Data's ``iter_batches`` gives, and end its threads with the iteration.

    Ray Data 2.60 starts a prefetching thread for each iteration and does not stop it.
    """
    iterator: Any = iter(batches)
    prefetcher = None
    try:
        for batch in iterator:
            prefetcher = prefetcher or _prefetcher_of(iterator)
            yield batch
    finally:
        if hasattr(iterator, "close"):
            iterator.close()
        if prefetcher is not None:
            prefetcher.stop()


def _prefetcher_of(batches: Any) -> Any:
    """Return what a running iteration prefetches with, or None where Ray Data is built otherwise."""
    if not inspect.isgenerator(batches):
        return None
    return getattr(inspect.getgeneratorlocals(batches).get("batch_iterator"), "_prefetcher", None)
