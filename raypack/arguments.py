"""Checks of arguments at the door: the argument, the rule, the value got, the remedy."""

from __future__ import annotations

import reprlib
from collections.abc import Collection

import numpy as np

from raypack.errors import RaypackError, SamplerError

_REPR_LIMIT = 80
_INTEGER_BITS = 256


class _Short(reprlib.Repr):
    """A repr of few levels and items, which no nesting and no huge integer can break."""

    def repr_int(self, x: int, level: int) -> str:
        """Name the size of an integer whose digits Python may refuse to print."""
        return repr(x) if x.bit_length() <= _INTEGER_BITS else f"an integer of {x.bit_length()} bits"


_SHORT = _Short()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxdict = 20
_SHORT.maxstring = _SHORT.maxother = 2 * _REPR_LIMIT


def shown(value: object) -> str:
    """Return ``repr(value)``, cut to a length that a person reads."""
    text = _SHORT.repr(value)
    return text if len(text) <= _REPR_LIMIT else text[: _REPR_LIMIT - 3] + "..."


def type_name(value: object) -> str:
    """Return the full name of a value's type: ``int``, ``numpy.bool``."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def integer(
    name: str,
    value: object,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    error: type[RaypackError] = SamplerError,
) -> int:
    """Return ``value`` as a Python int.

    Python and numpy integers are accepted; bool and float never are.

    Raises:
        TypeError: ``value`` is no integer.
        error: ``value`` lies outside [minimum, maximum].
    """
    number = value if type(value) is int else _number(name, value)
    if minimum is not None and number < minimum:
        raise error(f"{name} must be at least {minimum}, got {shown(number)}")
    if maximum is not None and number > maximum:
        raise error(f"{name} must be at most {maximum}, got {shown(number)}")
    return number


def _number(name: str, value: object) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {type_name(value)}")
    return int(value)


def optional_integer(
    name: str,
    value: object,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    error: type[RaypackError] = SamplerError,
) -> int | None:
    """Return ``value`` as a Python int, or None where it is None; see `integer`."""
    return None if value is None else integer(name, value, minimum=minimum, maximum=maximum, error=error)


def text(name: str, value: object, *, error: type[RaypackError] = SamplerError) -> str:
    """Return ``value`` as a non-empty str.

    Raises:
        TypeError: ``value`` is no str.
        error: it is empty.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type_name(value)}")
    if not value:
        raise error(f"{name} must be a non-empty str, got ''")
    return value


def flag(name: str, value: object) -> bool:
    """Return ``value`` if it is a Python bool.

    Raises:
        TypeError: it is not; numpy's bool is refused too.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be bool, got {type_name(value)}")
    return value


def choice(
    name: str, value: object, options: Collection[str], *, error: type[RaypackError] = SamplerError
) -> str:
    """Return ``value`` if it is one of ``options``.

    Raises:
        TypeError: ``value`` is no str.
        error: it is not among the options.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type_name(value)}")
    if value not in options:
        raise error(f"{name} must be one of {', '.join(map(repr, options))}; got {shown(value)}")
    return value
