"""Failures that a run survives, and the strict mode in which it does not.

Some work is beside the training: a check of what was saved, a cached count, a way round a missing feature.
Where it fails, the run goes on and the failure is logged. Such a log line is easily missed, so with
``RAYPACK_STRICT=1`` in the environment the failure is raised instead. The tests of raypack run that way.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from raypack.errors import DegradedError

STRICT_VARIABLE = "RAYPACK_STRICT"


def is_strict() -> bool:
    """Return whether failures are raised that a run would survive."""
    return os.environ.get(STRICT_VARIABLE) == "1"


@contextmanager
def guard(logger: logging.Logger, message: str, *arguments: object) -> Iterator[None]:
    """Log what the block raises, with its traceback, and go on; in strict mode let it through.

    It also decorates functions, which then return None where they fail.

    Args:
        logger: Logger of the module.
        message: What failed and what follows from it.
        arguments: For the placeholders of the message.
    """
    try:
        yield
    except Exception:
        if is_strict():
            raise
        logger.exception(message, *arguments)


def degrade(
    logger: logging.Logger, message: str, *arguments: object, once: bool = False, level: int = logging.WARNING
) -> None:
    """Log that something is done in a lesser way or once more.

    Args:
        logger: Logger of the module.
        message: What is missing or failed, and what is done instead.
        arguments: For the placeholders of the message.
        once: Log this message once a process.
        level: Level of the log line.

    Raises:
        DegradedError: Always in strict mode.
    """
    if is_strict():
        raise DegradedError(message % arguments)
    if once and message in _logged:
        return
    _logged.add(message)
    logger.log(level, message, *arguments)


_logged: set[str] = set()
