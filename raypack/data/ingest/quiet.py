"""Silences Ray Data's log output about the prepare job's own dataset."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = ("ray.data._internal.execution.streaming_executor", "ray.data._internal.progress")


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Drop Ray Data's lines about the dataset ``name`` and its progress bar for the time of a block.

    Warnings and errors (no CPU is free, say), and what other datasets have to say, still pass.
    """

    def passes(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if record.levelno > logging.INFO:
            return "Progress bars disabled" not in message
        return name not in message

    loggers = [logging.getLogger(logger) for logger in _LOGGERS]
    for logger in loggers:
        logger.addFilter(passes)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(passes)
