"""The manifest as JSON: written canonically, read with suspicion."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from raypack.arguments import shown
from raypack.errors import SourceError
from raypack.source.manifest import json_fields as fields
from raypack.source.manifest.json_fields import FieldError
from raypack.source.manifest.record import (
    FORMAT,
    VERSION,
    Extreme,
    IndexEntry,
    OriginalFile,
    SegmentEntry,
    ShardEntry,
    SourceManifest,
    TableEntry,
    digest_of,
)
from raypack.source.manifest.rules import ORIGINAL_KINDS, check_manifest

# What every manifest has; an index has one more.
_TOP = frozenset(field.name for field in dataclasses.fields(SourceManifest)) - {"has_labels", "index"} | {
    "format",
    "version",
    "schema",
    "fingerprint",
    "checksum",
}


def dump_manifest(manifest: SourceManifest) -> bytes:
    """Return the manifest as the JSON text of ``manifest.json``."""
    left_out = {"has_labels"} if manifest.index is not None else {"has_labels", "index"}
    names = [field.name for field in dataclasses.fields(manifest) if field.name not in left_out]
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
        return _manifest(_identify(record, where))
    except SourceError:
        raise
    except (ValueError, FieldError, RecursionError) as error:
        raise SourceError(f"{where} is damaged: {error}; make the source again") from error


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise FieldError("a field is given twice")
    return record


def _no_constant(name: str) -> None:
    raise FieldError(f"{name} is no number")


def _identify(record: object, where: str) -> dict[str, Any]:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise SourceError(f"{where} is no manifest of a raypack source (format {FORMAT!r} is missing)")
    version = record.get("version")
    if type(version) is not int or version != VERSION:
        raise SourceError(
            f"{where} has version {shown(version)}; this raypack reads version {VERSION}: "
            "install the raypack that wrote it, or prepare the source again"
        )
    fields.check_names(record, _TOP | ({"index"} & record.keys()), "manifest")
    body = {name: value for name, value in record.items() if name != "checksum"}
    if record["checksum"] != digest_of(body):
        raise FieldError("its checksum does not match, so it was edited or cut")
    return record


def _manifest(raw: dict[str, Any]) -> SourceManifest:
    shards = fields.items(raw, "shards")
    is_index = "index" in raw
    manifest = SourceManifest(
        examples=fields.count(raw, "examples"),
        tokens=fields.count(raw, "tokens"),
        supervised_tokens=fields.count(raw, "supervised_tokens"),
        has_labels=isinstance(raw["schema"], dict) and "labels" in raw["schema"],
        shards=tuple(map(_segment, shards)) if is_index else tuple(map(_shard, shards)),
        lengths=_table(raw, "lengths"),
        supervised=_table(raw, "supervised"),
        shortest=_extreme(raw, "shortest"),
        longest=_extreme(raw, "longest"),
        prepared=fields.mapping(raw, "prepared", (str, int, float, bool, type(None))),
        counts=fields.mapping(raw, "counts", (int,)),
        index=_index(raw["index"]) if is_index else None,
    )
    check_manifest(manifest)
    if raw["schema"] != manifest.schema:
        raise FieldError(f"schema must be {manifest.schema}, got {shown(raw['schema'])}")
    if raw["fingerprint"] != manifest.fingerprint:
        raise FieldError("fingerprint does not belong to its other fields")
    return manifest


def _shard(entry: Any) -> ShardEntry:
    fields.check_names(entry, frozenset(ShardEntry.__slots__), "a shard")
    counts = {name: fields.count(entry, name) for name in ("bytes", "examples", "tokens")}
    return ShardEntry(
        file=fields.file_name(entry), digest=fields.digest(entry, fields.SHARD_DIGEST), **counts
    )


def _segment(entry: Any) -> SegmentEntry:
    fields.check_names(entry, frozenset(SegmentEntry.__slots__), "a segment")
    names = ("original", "part", "examples", "tokens", "values")
    counts = {name: fields.count(entry, name) for name in names}
    return SegmentEntry(digest=fields.digest(entry, fields.SHARD_DIGEST), **counts)


def _table(record: Mapping[str, Any], name: str) -> TableEntry:
    entry = record[name]
    fields.check_names(entry, frozenset(TableEntry.__slots__), name)
    return TableEntry(
        file=fields.file_name(entry),
        bytes=fields.count(entry, "bytes"),
        digest=fields.digest(entry, fields.TABLE_DIGEST),
    )


def _extreme(record: Mapping[str, Any], name: str) -> Extreme | None:
    entry = record[name]
    if entry is None:
        return None
    fields.check_names(entry, frozenset(Extreme.__slots__), name)
    return Extreme(length=fields.count(entry, "length"), index=fields.count(entry, "index"))


def _index(entry: Any) -> IndexEntry:
    fields.check_names(entry, frozenset(IndexEntry.__slots__), "index")
    labels = None if entry["labels_column"] is None else fields.string(entry, "labels_column")
    return IndexEntry(
        originals=tuple(map(_original, fields.items(entry, "originals"))),
        column=fields.string(entry, "column"),
        labels_column=labels,
        starts=_table(entry, "starts"),
    )


def _original(entry: Any) -> OriginalFile:
    fields.check_names(entry, frozenset(OriginalFile.__slots__), "an original")
    kind = fields.string(entry, "kind")
    if kind not in ORIGINAL_KINDS:
        raise FieldError(f"kind must be one of {', '.join(ORIGINAL_KINDS)}, got {shown(kind)}")
    modified = None if entry["modified"] is None else fields.count(entry, "modified")
    return OriginalFile(
        uri=fields.string(entry, "uri"), kind=kind, bytes=fields.count(entry, "bytes"), modified=modified
    )
