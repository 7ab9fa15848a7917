"""What must hold between the fields of a manifest."""

from __future__ import annotations

from raypack.choices import INT32_MAX
from raypack.source.manifest.json_fields import FieldError
from raypack.source.manifest.record import IndexEntry, SegmentEntry, ShardEntry, SourceManifest

ORIGINAL_KINDS = ("parquet", "ipc_file", "ipc_stream")


def check_manifest(manifest: SourceManifest) -> None:
    """Check sums, tables and extremes.

    Raises:
        FieldError: naming the first field that is wrong.
    """
    for name in ("examples", "tokens"):
        total = sum(getattr(shard, name) for shard in manifest.shards)
        if total != getattr(manifest, name):
            raise FieldError(f"{name} is {getattr(manifest, name)}, but its shards hold {total}")
    for shard in manifest.shards:
        if not 1 <= shard.examples <= shard.tokens:
            raise FieldError(f"shard {_name(shard)} must hold at least one token an example")
    for table in manifest.tables:
        if table.bytes != 4 * manifest.examples:
            raise FieldError(f"table {table.file} must have 4 bytes an example, got {table.bytes}")
    files = [entry.file for entry in manifest.entries]
    if len(set(files)) != len(files):
        raise FieldError("a file is named twice")
    if manifest.supervised_tokens > manifest.tokens - manifest.examples:
        raise FieldError(f"supervised_tokens is {manifest.supervised_tokens}, more than the tokens allow")
    _check_extremes(manifest)
    if manifest.index is not None:
        _check_index(manifest, manifest.index)


def _name(shard: ShardEntry | SegmentEntry) -> str:
    return shard.file if isinstance(shard, ShardEntry) else f"{shard.part} of original {shard.original}"


def _check_extremes(manifest: SourceManifest) -> None:
    shortest, longest = manifest.shortest, manifest.longest
    if shortest is None or longest is None:
        if manifest.examples or shortest is not longest:
            raise FieldError("shortest and longest must be given where there are examples")
        return
    if max(shortest.index, longest.index) >= manifest.examples:
        raise FieldError("shortest and longest must be examples of the source")
    if not 1 <= shortest.length <= longest.length <= INT32_MAX:
        raise FieldError("shortest must be at least 1 token and no longer than longest")
    if not shortest.length * manifest.examples <= manifest.tokens <= longest.length * manifest.examples:
        raise FieldError("tokens must lie between the shortest and the longest length times the examples")


def _check_index(manifest: SourceManifest, index: IndexEntry) -> None:
    if manifest.has_labels != (index.labels_column is not None):
        raise FieldError("labels_column must be given where the schema has labels, and only there")
    for segment in manifest.shards:
        if isinstance(segment, SegmentEntry):
            if segment.original >= len(index.originals):
                raise FieldError(f"original must be less than {len(index.originals)}, got {segment.original}")
            if not segment.tokens <= segment.values <= INT32_MAX:
                raise FieldError("values must be at least the tokens of a segment, and fit int32")
