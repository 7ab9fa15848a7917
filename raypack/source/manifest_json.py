"""The manifest as JSON: written canonically, read with suspicion."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from raypack.arguments import shown
from raypack.errors import SourceError
from raypack.source.manifest import (
    FORMAT,
    VERSION,
    Extreme,
    ShardEntry,
    SourceManifest,
    TableEntry,
    digest_of,
)

_TOP = frozenset(field.name for field in dataclasses.fields(SourceManifest)) - {"has_labels"} | {
    "format",
    "version",
    "schema",
    "fingerprint",
    "checksum",
}
_SHARD_DIGEST = re.compile(r"[0-9a-f]{64}")
_TABLE_DIGEST = re.compile(r"[0-9a-f]{32}")
_INT32_MAX = 2**31 - 1


def dump_manifest(manifest: SourceManifest) -> bytes:
    """Return the manifest as the JSON text of ``manifest.json``."""
    names = [field.name for field in dataclasses.fields(manifest) if field.name != "has_labels"]
    record = {name: _plain(getattr(manifest, name)) for name in names}
    record |= {"format": FORMAT, "version": VERSION, "schema": manifest.schema}
    record["fingerprint"] = manifest.fingerprint
    record["checksum"] = digest_of(record)
    return (json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def parse_manifest(text: bytes, where: str) -> SourceManifest:
    """Return the manifest in ``text``, every field of it checked.

    Args:
        text: Contents of ``manifest.json``.
        where: The file's name for messages.

    Raises:
        SourceError: it is no JSON, of another format or version, or was edited or damaged.
    """
    try:
        record = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
        return _Reader(where).manifest(record)
    except SourceError:
        raise
    except (ValueError, _FaultError, RecursionError) as error:
        raise SourceError(f"{where} is damaged: {error}; prepare the source again") from error


class _FaultError(Exception):
    """A rule that the manifest breaks."""


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise _FaultError("a field is given twice")
    return record


def _no_constant(name: str) -> None:
    raise _FaultError(f"{name} is no number")


class _Reader:
    """Turns raw JSON into records and names the first field that is wrong."""

    def __init__(self, where: str) -> None:
        self._where = where

    def manifest(self, record: object) -> SourceManifest:
        raw = self._identify(record)
        manifest = SourceManifest(
            examples=self._count(raw, "examples"),
            tokens=self._count(raw, "tokens"),
            supervised_tokens=self._count(raw, "supervised_tokens"),
            has_labels=self._has_labels(raw["schema"]),
            shards=self._shards(raw["shards"]),
            lengths=self._table(raw, "lengths"),
            supervised=self._table(raw, "supervised"),
            shortest=self._extreme(raw, "shortest"),
            longest=self._extreme(raw, "longest"),
            prepared=self._mapping(raw, "prepared", (str, int, float, bool, type(None))),
            counts=self._mapping(raw, "counts", (int,)),
        )
        _check_sums(manifest)
        if raw["schema"] != manifest.schema:
            raise _FaultError(f"schema must be {manifest.schema}, got {shown(raw['schema'])}")
        if raw["fingerprint"] != manifest.fingerprint:
            raise _FaultError("fingerprint does not belong to its other fields")
        return manifest

    def _identify(self, record: object) -> dict[str, Any]:
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise SourceError(
                f"{self._where} is no manifest of a raypack source (format {FORMAT!r} is missing)"
            )
        version = record.get("version")
        if type(version) is not int or version != VERSION:
            raise SourceError(
                f"{self._where} has version {shown(version)}; this raypack reads version {VERSION}: "
                "install the raypack that wrote it, or prepare the source again"
            )
        self._names(record, _TOP, "manifest")
        body = {name: value for name, value in record.items() if name != "checksum"}
        if record["checksum"] != digest_of(body):
            raise _FaultError("its checksum does not match, so it was edited or cut")
        return record

    def _names(self, record: object, names: frozenset[str], what: str) -> None:
        if not isinstance(record, dict):
            raise _FaultError(f"{what} must be an object, got {shown(record)}")
        if missing := sorted(names - record.keys()):
            raise _FaultError(f"{what} lacks the field {missing[0]!r}")
        if unknown := sorted(record.keys() - names):
            raise _FaultError(f"{what} has the unknown field {unknown[0]!r}")

    def _count(self, record: Mapping[str, Any], name: str) -> int:
        value = record[name]
        if type(value) is not int or value < 0:
            raise _FaultError(f"{name} must be an integer of at least 0, got {shown(value)}")
        return value

    def _digest(self, record: Mapping[str, Any], rule: re.Pattern[str]) -> str:
        value = record["digest"]
        if not isinstance(value, str) or not rule.fullmatch(value):
            raise _FaultError(f"digest must match {rule.pattern}, got {shown(value)}")
        return value

    def _file(self, record: Mapping[str, Any]) -> str:
        value = record["file"]
        # A name with a folder in it could lead out of the source.
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._\-]*", value):
            raise _FaultError(f"file must be a plain file name, got {shown(value)}")
        return value

    def _has_labels(self, schema: object) -> bool:
        return isinstance(schema, dict) and "labels" in schema

    def _shards(self, entries: object) -> tuple[ShardEntry, ...]:
        if not isinstance(entries, list):
            raise _FaultError(f"shards must be a list, got {shown(entries)}")
        return tuple(self._shard(entry) for entry in entries)

    def _shard(self, entry: Any) -> ShardEntry:
        self._names(entry, frozenset(ShardEntry.__slots__), "a shard")
        counts = {name: self._count(entry, name) for name in ("bytes", "examples", "tokens")}
        return ShardEntry(file=self._file(entry), digest=self._digest(entry, _SHARD_DIGEST), **counts)

    def _table(self, record: Mapping[str, Any], name: str) -> TableEntry:
        entry = record[name]
        self._names(entry, frozenset(TableEntry.__slots__), name)
        return TableEntry(
            file=self._file(entry),
            bytes=self._count(entry, "bytes"),
            digest=self._digest(entry, _TABLE_DIGEST),
        )

    def _extreme(self, record: Mapping[str, Any], name: str) -> Extreme | None:
        entry = record[name]
        if entry is None:
            return None
        self._names(entry, frozenset(Extreme.__slots__), name)
        return Extreme(length=self._count(entry, "length"), index=self._count(entry, "index"))

    def _mapping(self, record: Mapping[str, Any], name: str, types: tuple[type, ...]) -> dict[str, Any]:
        entries = record[name]
        if not isinstance(entries, dict) or not all(type(value) in types for value in entries.values()):
            raise _FaultError(f"{name} must be an object of plain values, got {shown(entries)}")
        return entries


def _check_sums(manifest: SourceManifest) -> None:
    for name in ("examples", "tokens"):
        total = sum(getattr(shard, name) for shard in manifest.shards)
        if total != getattr(manifest, name):
            raise _FaultError(f"{name} is {getattr(manifest, name)}, but its shards hold {total}")
    for shard in manifest.shards:
        if not 1 <= shard.examples <= shard.tokens:
            raise _FaultError(f"shard {shard.file} must hold at least one token an example")
    for table in (manifest.lengths, manifest.supervised):
        if table.bytes != 4 * manifest.examples:
            raise _FaultError(f"table {table.file} must have 4 bytes an example, got {table.bytes}")
    files = [entry.file for entry in manifest.entries]
    if len(set(files)) != len(files):
        raise _FaultError("a file is named twice")
    if manifest.supervised_tokens > manifest.tokens - manifest.examples:
        raise _FaultError(f"supervised_tokens is {manifest.supervised_tokens}, more than the tokens allow")
    _check_extremes(manifest)


def _check_extremes(manifest: SourceManifest) -> None:
    shortest, longest = manifest.shortest, manifest.longest
    if shortest is None or longest is None:
        if manifest.examples or shortest is not longest:
            raise _FaultError("shortest and longest must be given where there are examples")
        return
    if max(shortest.index, longest.index) >= manifest.examples:
        raise _FaultError("shortest and longest must be examples of the source")
    if not 1 <= shortest.length <= longest.length <= _INT32_MAX:
        raise _FaultError("shortest must be at least 1 token and no longer than longest")
    if not shortest.length * manifest.examples <= manifest.tokens <= longest.length * manifest.examples:
        raise _FaultError("tokens must lie between the shortest and the longest length times the examples")
