"""Blocks of a stream: one Arrow row that holds some consecutive micro-batches of a rank.

One row is one block, since Ray Data cuts and joins tables of several rows by their bytes; it leaves
a single row alone, so that what the reader yields is what the loader gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raypack.batching.sequence.plan_block import PlanBlock, RowMeta
from raypack.errors import StreamError
from raypack.source import ArrowSource

_COLUMNS: dict[str, Any] = {
    "meta": pa.int64(),
    "counts": pa.int64(),
    "indices": pa.int64(),
    "lengths": pa.int32(),
    "input_ids": pa.int32(),
    "labels": pa.int32(),
}
SCHEMA = pa.schema(
    [("first", pa.int64()), ("num_expired", pa.int64())]
    + [(name, pa.large_list(kind)) for name, kind in _COLUMNS.items()]
)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One micro-batch of one rank, as flat arrays on the host."""

    address: int
    """Number of the micro-batch since the attempt began."""
    meta: RowMeta
    indices: npt.NDArray[np.int64]
    """Source indices, shape (documents,)."""
    lengths: npt.NDArray[np.int32]
    """Tokens of each document, shape (documents,)."""
    input_ids: npt.NDArray[np.int32]
    """Tokens of all documents, shape (sum(lengths),)."""
    labels: npt.NDArray[np.int32] | None
    """Labels of the same shape, or None where the source has none."""


def load_block(block: PlanBlock, source: ArrowSource) -> list[StreamRow]:
    """Read a block's examples and return its micro-batches, for a loop in this process."""
    return _rows(block, *source.take_flat(block.indices))


def encode_block(block: PlanBlock, source: ArrowSource) -> pa.Table:
    """Read a block's examples and return it as a table of one row."""
    input_ids, lengths, labels = source.take_flat(block.indices)
    columns: dict[str, Any] = {
        "meta": block.meta.ravel(),
        "counts": block.counts,
        "indices": block.indices,
        "lengths": lengths,
        "input_ids": input_ids,
        "labels": labels,
    }
    arrays = [pa.array([block.first], pa.int64()), pa.array([block.num_expired], pa.int64())]
    arrays += [_one_row(columns[name], kind) for name, kind in _COLUMNS.items()]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _one_row(values: npt.NDArray[Any] | None, kind: Any) -> Any:
    if values is None:
        return pa.array([None], pa.large_list(kind))
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), pa.array(values, kind))


def decode_block(table: pa.Table) -> list[StreamRow]:
    """Return the micro-batches of a block, as views of the table's memory.

    Raises:
        StreamError: The table is no block of this version.
    """
    if not table.schema.equals(SCHEMA):
        raise StreamError(f"a block must have the schema {SCHEMA.names}, got {table.schema.names}")
    rows: list[StreamRow] = []
    for k in range(table.num_rows):
        rows += _decode_row(table.slice(k, 1))
    return rows


def _decode_row(table: pa.Table) -> list[StreamRow]:
    first, num_expired = (table.column(name)[0].as_py() for name in ("first", "num_expired"))
    always = [name for name in _COLUMNS if name != "labels"]
    meta, counts, indices, lengths, input_ids = (_values(table.column(name)) for name in always)
    labels = _values(table.column("labels")) if table.column("labels").null_count == 0 else None
    plans = PlanBlock(first, num_expired, meta.reshape(-1, len(RowMeta._fields)), counts, indices)
    return _rows(plans, input_ids, lengths, labels)


def _rows(
    block: PlanBlock,
    input_ids: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
    labels: npt.NDArray[np.int32] | None,
) -> list[StreamRow]:
    """Cut what was read of a block into its micro-batches, as views."""
    documents = np.concatenate([[0], np.cumsum(block.counts)])
    tokens = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[documents].tolist()
    documents, meta = documents.tolist(), block.meta.tolist()
    rows = []
    for k in range(block.num_expired, len(block)):
        here, span = slice(*documents[k : k + 2]), slice(*tokens[k : k + 2])
        rows.append(
            StreamRow(
                address=block.first + k,
                meta=RowMeta(*meta[k]),
                indices=block.indices[here],
                lengths=lengths[here],
                input_ids=input_ids[span],
                labels=None if labels is None else labels[span],
            )
        )
    return rows


def _values(column: Any) -> npt.NDArray[Any]:
    """Return the flat values of a list column of one row without a copy."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    start, stop = array.offsets[0].as_py(), array.offsets[1].as_py()
    values: npt.NDArray[Any] = array.values.slice(start, stop - start).to_numpy(zero_copy_only=True)
    return values
