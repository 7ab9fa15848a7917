"""Fields of a manifest's JSON, each checked as it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from raypack.arguments import shown

SHARD_DIGEST = re.compile(r"[0-9a-f]{64}")
TABLE_DIGEST = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*")


class FieldError(Exception):
    """A rule that the manifest breaks."""


def check_names(record: object, names: frozenset[str], what: str) -> None:
    """Check that a record has these fields and no others."""
    if not isinstance(record, dict):
        raise FieldError(f"{what} must be an object, got {shown(record)}")
    if missing := sorted(names - record.keys()):
        raise FieldError(f"{what} lacks the field {missing[0]!r}")
    if unknown := sorted(record.keys() - names):
        raise FieldError(f"{what} has the unknown field {unknown[0]!r}")


def count(record: Mapping[str, Any], name: str) -> int:
    """Return a field that is an integer of at least 0."""
    value = record[name]
    if type(value) is not int or value < 0:
        raise FieldError(f"{name} must be an integer of at least 0, got {shown(value)}")
    return value


def digest(record: Mapping[str, Any], rule: re.Pattern[str]) -> str:
    """Return the field ``digest``."""
    value = record["digest"]
    if not isinstance(value, str) or not rule.fullmatch(value):
        raise FieldError(f"digest must match {rule.pattern}, got {shown(value)}")
    return value


def file_name(record: Mapping[str, Any]) -> str:
    """Return the field ``file``, a name in the source's own folder."""
    value = record["file"]
    # A name with a folder in it could lead out of the source.
    if not isinstance(value, str) or not _FILE.fullmatch(value):
        raise FieldError(f"file must be a plain file name, got {shown(value)}")
    return value


def string(record: Mapping[str, Any], name: str) -> str:
    """Return a field that is a non-empty str."""
    value = record[name]
    if not isinstance(value, str) or not value:
        raise FieldError(f"{name} must be a non-empty string, got {shown(value)}")
    return value


def items(record: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that is a list."""
    value = record[name]
    if not isinstance(value, list):
        raise FieldError(f"{name} must be a list, got {shown(value)}")
    return value


def mapping(record: Mapping[str, Any], name: str, types: tuple[type, ...]) -> dict[str, Any]:
    """Return a field that maps names to plain values of these types."""
    entries = record[name]
    if not isinstance(entries, dict) or not all(type(value) in types for value in entries.values()):
        raise FieldError(f"{name} must be an object of plain values, got {shown(entries)}")
    return entries
