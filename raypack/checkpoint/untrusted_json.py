"""Parses JSON from untrusted files: size, nesting and numbers are bounded."""

from __future__ import annotations

import json
from typing import Any

from raypack.arguments import shown
from raypack.errors import CheckpointError

_MOST_VALUES = 1 << 21
"""Lists, objects and their entries: more than a ledger of 100,000 epochs has."""
_MOST_LEVELS = 32
_MOST_DIGITS = 20
"""Digits of an integer: those of 2^64."""
_MOST_FLOAT = 40


def parse(data: bytes, *, most_values: int = _MOST_VALUES, is_state: bool = True) -> Any:
    """Return the values of a JSON text, in time and memory that its size bounds.

    Args:
        data: The text, UTF-8.
        most_values: How many lists, objects and entries of them there may be.
        is_state: Whether raypack wrote it: then numbers and text are checked too. In files of others
            numbers are left as text.

    Raises:
        CheckpointError: It is cut short or no JSON, or has too many values, too deep a nesting, a number
            that no state has, or half a surrogate pair.
    """
    values = sum(data.count(mark) for mark in (b"[", b"{", b","))
    if values > most_values:
        raise CheckpointError(f"must hold at most {most_values} values, got {values} or more")
    integer, real, constant = (_integer, _float, _constant) if is_state else (str, str, str)
    try:
        text = data.decode("utf-8")
        found = json.loads(text, parse_int=integer, parse_float=real, parse_constant=constant)
    except CheckpointError:
        raise
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise CheckpointError(f"is no complete JSON file ({error})") from error
    _check_levels(found, is_state)
    return found


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise CheckpointError(f"holds an integer of {len(digits)} digits; no state has such a number")
    return int(digits)


def _float(text: str) -> float:
    value = float(text) if len(text) <= _MOST_FLOAT else float("inf")
    if value in (float("inf"), float("-inf")):
        raise CheckpointError(f"holds the number {shown(text)}; no state has such a number")
    return value


def _constant(name: str) -> Any:
    raise CheckpointError(f"holds a number that JSON has not ({name})")


def _check_levels(found: Any, with_text: bool) -> None:
    """Refuse nesting and text that later code could not follow or write."""
    level = [found]
    for _ in range(_MOST_LEVELS):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                _check_text(value if with_text else ())
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str) and with_text:
                _check_text((value,))
        if not below:
            return
        level = below
    raise _too_deep()


def _check_text(texts: Any) -> None:
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise CheckpointError(f"holds text that is no Unicode: {shown(text)}") from error


def _too_deep() -> CheckpointError:
    return CheckpointError(f"must be nested at most {_MOST_LEVELS} levels deep; no state is deeper")
