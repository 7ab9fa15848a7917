"""Reading saved records: a dict that anybody may have edited becomes checked fields or a SamplerError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from raypack.arguments import integer, shown, type_name
from raypack.errors import SamplerError

_Record = TypeVar("_Record")


def read_fields(record: str, value: object, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a saved record, all of ``names`` and no other.

    Args:
        record: What the record is called in messages.
        value: The dict as loaded.
        names: The fields it must have.

    Raises:
        SamplerError: ``value`` is no dict, or a field is missing or unknown.
    """
    if not isinstance(value, Mapping):
        raise SamplerError(f"{record} must be a dict, got {type_name(value)}")
    missing = [name for name in names if name not in value]
    if missing:
        raise SamplerError(f"{record} lacks {', '.join(missing)}; it is damaged or of another format")
    unknown = [key for key in value if key not in names]
    if unknown:
        raise SamplerError(
            f"{record} has unknown fields {shown(unknown)}; it is damaged or of a newer format"
        )
    return {name: value[name] for name in names}


def read_integer(record: str, name: str, value: object, maximum: int) -> int:
    """Return an integer field of a saved record, 0 to ``maximum``.

    Raises:
        SamplerError: ``value`` is of another type or out of range.
    """
    try:
        return integer(f"{name} of {record}", value, minimum=0, maximum=maximum)
    except TypeError as fault:
        raise SamplerError(f"{record} is damaged: {fault}") from fault


def build(record: str, make: Callable[..., _Record], fields: dict[str, Any]) -> _Record:
    """Make a record of loaded fields; a field of the wrong type is the record's fault, not the caller's.

    Raises:
        SamplerError: the fields are wrong in type or value.
    """
    try:
        return make(**fields)
    except TypeError as fault:
        raise SamplerError(f"{record} is damaged: {fault}") from fault


def check_version(record: str, version: object, known: int) -> None:
    """Refuse a record of another format.

    Raises:
        SamplerError: ``version`` is not ``known``.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version != known:
        raise SamplerError(
            f"{record} must have version {known}, got {shown(version)}; use a raypack that wrote it"
        )


def check_record(name: str, value: object, kind: type) -> None:
    """Refuse anything but a record of one kind.

    Raises:
        TypeError: ``value`` is something else.
    """
    if not isinstance(value, kind):
        raise TypeError(
            f"{name} must be a {kind.__name__}, got {type_name(value)}; read dicts with its from_dict"
        )
