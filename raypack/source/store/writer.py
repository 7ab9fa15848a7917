"""Writing a store: shards, then tables, and the manifest last."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import pyarrow as pa

from raypack.arguments import integer
from raypack.errors import SourceError
from raypack.source.manifest.record import Scalar
from raypack.source.manifest.writer import ManifestWriter
from raypack.source.paths.new_folder import new_folder
from raypack.source.store.arrow_source import ArrowSource, open_source
from raypack.source.store.rows import cut_shards, read_batches
from raypack.source.store.shards import shard_file, write_shard

SHARD_TOKENS = 1 << 26
"""Tokens of a shard at the most: 256 MiB of int32."""


def write_source(
    path: str | os.PathLike[str],
    batches: Iterable[pa.Table | pa.RecordBatch],
    *,
    prepared: Mapping[str, Scalar] | None = None,
    counts: Mapping[str, int] | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> ArrowSource:
    """Write examples as a new source.

    Args:
        path: The folder to make, as a path or the URI of any file system; nothing may lie there.
        batches: Tables or record batches with ``input_ids`` and, where there are any, ``labels``: lists or
            large lists of integers that fit int32, no nulls, no empty example, no negative id; labels as
            long as the ids, each at least 0 or -100.
        prepared: How the tokens were made; part of the fingerprint.
        counts: What was read, dropped and so on; kept, but not part of the fingerprint.
        shard_tokens: Tokens of a shard at the most; one longer example has a shard of its own.

    Returns:
        The source, opened.

    Raises:
        TypeError: an argument has a wrong type.
        SourceError: the target exists, or an example cannot be stored. Nothing is left at ``path``.
    """
    limit = integer("shard_tokens", shard_tokens, minimum=1, error=SourceError)
    with new_folder(path) as folder, ManifestWriter(folder) as manifest:
        has_labels = False
        for number, rows in enumerate(cut_shards(read_batches(batches), limit)):
            has_labels = rows.labels is not None
            entry = write_shard(folder, shard_file(number), rows)
            manifest.add(entry, rows.lengths, rows.supervised())
        manifest.finish(has_labels=has_labels, prepared=prepared or {}, counts=counts or {})
        return open_source(path)
