"""Shards: Arrow IPC files of one record batch, written once and memory-mapped."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raypack.errors import SourceError
from raypack.source.manifest.record import ShardEntry
from raypack.source.paths.location import Location
from raypack.source.store.rows import Rows

LIST_TYPE = pa.large_list(pa.int32())


@dataclass(frozen=True, slots=True)
class Shard:
    """The columns of a shard, or of a segment of an original file.

    Attributes:
        starts: int64 (n,), where each example begins in the columns; a view that gives plain integers.
        ends: int64 (n,), where it ends.
        input_ids: Integers (t,), the tokens of all rows; int32 in a store, what the file holds in an index.
        labels: Integers (t,), their labels; None where there are none.
        is_mapped: Whether the columns are memory-mapped, so that keeping them costs nothing.
    """

    starts: memoryview
    ends: memoryview
    input_ids: NDArray[np.integer[Any]]
    labels: NDArray[np.integer[Any]] | None
    is_mapped: bool = True


def shard_file(number: int, part: int = 0) -> str:
    """Return the file name of the shard at a place in the order, or of a later part of what belongs there."""
    return f"shard-{number:06d}-{part:04d}.arrow" if part else f"shard-{number:06d}.arrow"


def lists_of(values: NDArray[np.int32], lengths: NDArray[np.integer[Any]]) -> pa.LargeListArray:
    """Return flat values (t,) and lengths (n,) as a ``large_list<int32>`` array without a copy."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int32()))


def table_of(rows: Rows) -> pa.Table:
    """Return rows as a table with the columns of a source."""
    columns = {"input_ids": lists_of(rows.input_ids, rows.lengths)}
    if rows.labels is not None:
        columns["labels"] = lists_of(rows.labels, rows.lengths)
    return pa.table(columns)


def digest_of_columns(input_ids: NDArray[np.integer[Any]], labels: NDArray[np.integer[Any]] | None) -> str:
    """Return the SHA-256 (hex) of a shard's contents, as int32 whatever their type."""
    digest = hashlib.sha256(np.ascontiguousarray(input_ids, "<i4").data)
    if labels is not None:
        digest.update(np.ascontiguousarray(labels, "<i4").data)
    return digest.hexdigest()


def write_shard(folder: Location, name: str, rows: Rows) -> ShardEntry:
    """Write rows as one shard; writing it again replaces it by the same bytes.

    Args:
        folder: The source's folder.
        name: File name of the shard.
        rows: Its examples, at least one.

    Returns:
        The shard's entry in the manifest.
    """
    table = table_of(rows)
    with folder.filesystem.open_output_stream(folder.child(name)) as sink:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_batch(table.to_batches()[0])
        size = sink.tell()
    return ShardEntry(
        file=name,
        bytes=size,
        examples=len(rows.lengths),
        tokens=len(rows.input_ids),
        digest=digest_of_columns(rows.input_ids, rows.labels),
    )


def map_shard(path: str, entry: ShardEntry, columns: tuple[str, ...]) -> Shard:
    """Memory-map a shard and check that it is the one that the manifest describes.

    Args:
        path: The shard's file on this machine.
        entry: What the manifest says of it.
        columns: Names of the columns.

    Raises:
        SourceError: it is no Arrow file, or differs in schema, rows or tokens.
    """
    try:
        reader = pa.ipc.open_file(pa.memory_map(path))
        if reader.num_record_batches != 1:
            raise SourceError(f"shard {path} must hold 1 record batch, got {reader.num_record_batches}")
        batch = reader.get_batch(0)
        batch.validate()
    except (pa.ArrowInvalid, pa.ArrowSerializationError, OSError) as error:
        raise SourceError(f"shard {path} is no readable Arrow file: {error}; restore the source") from error
    expected = pa.schema([(name, LIST_TYPE) for name in columns])
    if not batch.schema.equals(expected) or batch.num_rows != entry.examples:
        raise SourceError(
            f"shard {path} must hold {entry.examples} rows of {columns} as {LIST_TYPE}; "
            f"got {batch.num_rows} rows of {batch.schema.to_string(show_field_metadata=False)!r}"
        )
    arrays = [_column(path, entry, batch.column(name)) for name in columns]
    for offsets, _ in arrays[1:]:
        if not np.array_equal(offsets, arrays[0][0]):
            raise SourceError(
                f"shard {path} has labels that are not as long as its tokens; restore the source"
            )
    edges, input_ids = arrays[0]
    labels = arrays[1][1] if len(arrays) > 1 else None
    return Shard(memoryview(edges[:-1].data), memoryview(edges[1:].data), input_ids, labels)


def _column(path: str, entry: ShardEntry, column: Any) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    offsets, values = column.offsets, column.values
    if column.null_count or values.null_count:
        raise SourceError(f"shard {path} holds nulls; restore the source")
    if len(values) != entry.tokens:
        raise SourceError(
            f"shard {path} must hold {entry.tokens} tokens, got {len(values)}; restore the source"
        )
    return offsets.to_numpy(), values.to_numpy()
