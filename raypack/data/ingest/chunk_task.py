"""What one task does: read a chunk, make its examples, write its shards, return a row about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raypack.data.encoders.example_reader import ExampleReader
from raypack.data.encoders.examples import fit
from raypack.data.formats.row import RowFault
from raypack.data.formats.rows import located
from raypack.data.ingest.chunks import Chunk
from raypack.data.ingest.counts import PrepareCounts
from raypack.data.ingest.options import PrepareOptions
from raypack.errors import RaypackError
from raypack.source.manifest.record import ShardEntry
from raypack.source.paths.location import locate
from raypack.source.store.rows import Rows, cut_shards
from raypack.source.store.shards import shard_file, write_shard

SHARD_TOKENS = 1 << 27
"""Tokens of a shard at the most: a compressed file is one chunk, however much it holds."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What became of a chunk.

    Attributes:
        number: The chunk's number.
        counts: What happened to its rows.
        shards: Its shards; none where it gave no example, or where there is a fault.
        lengths: int32 (n,), tokens of each example.
        supervised: int32 (n,), label tokens of each.
        fault: The first bad row, or why a shard could not be written; None where all is well.
    """

    number: int
    counts: PrepareCounts
    shards: tuple[ShardEntry, ...]
    lengths: NDArray[np.int32]
    supervised: NDArray[np.int32]
    fault: str | None = None

    def to_table(self) -> pa.Table:
        """Return the result as a table of one row."""
        record = {
            "number": self.number,
            "counts": self.counts.to_dict(),
            "shards": [asdict(shard) for shard in self.shards],
            "fault": self.fault,
        }
        columns = {"lengths": _one_row(self.lengths), "supervised": _one_row(self.supervised)}
        return pa.table({"record": [json.dumps(record)], **columns})


def _one_row(values: NDArray[np.int32]) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), pa.array(values, pa.int32()))


def read_results(table: pa.Table) -> Iterator[ChunkResult]:
    """Turn rows made by `ChunkResult.to_table` back into results."""
    lengths = table.column("lengths").combine_chunks()
    supervised = table.column("supervised").combine_chunks()
    for row, text in enumerate(table.column("record").to_pylist()):
        record = json.loads(text)
        yield ChunkResult(
            record["number"],
            PrepareCounts(**record["counts"]),
            tuple(ShardEntry(**shard) for shard in record["shards"]),
            lengths[row].values.to_numpy(),
            supervised[row].values.to_numpy(),
            record["fault"],
        )


def failed(number: int, reason: str) -> ChunkResult:
    """Return the result of a chunk that failed."""
    nothing = np.zeros(0, np.int32)
    return ChunkResult(number, PrepareCounts(), (), nothing, nothing, reason)


def prepare_chunk(chunk: Chunk, out: str, reader: ExampleReader[Any], options: PrepareOptions) -> ChunkResult:
    """Prepare a chunk; doing it again writes the same shards again.

    Args:
        chunk: What to read.
        out: The source's folder, which exists.
        reader: Makes examples of its rows.
        options: What the user chose.

    Returns:
        The result. A bad row, or a file that cannot be read or written, is a fault in it, not an error: so
        the driver can name the first fault in the order of the input.
    """
    counts = PrepareCounts(bytes=chunk.bytes)
    try:
        return _write(chunk, out, _examples(chunk, reader, options, counts), counts)
    except RowFault as fault:
        return failed(chunk.number, located(fault))
    except (OSError, MemoryError, RaypackError) as error:
        return failed(chunk.number, f"{chunk}: {type(error).__name__}: {error}")


def _write(chunk: Chunk, out: str, parts: Iterator[Rows], counts: PrepareCounts) -> ChunkResult:
    shards: list[ShardEntry] = []
    lengths, supervised = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for rows in cut_shards(parts, SHARD_TOKENS):
        shards.append(write_shard(locate(out), shard_file(chunk.number, len(shards)), rows))
        lengths.append(rows.lengths)
        supervised.append(rows.supervised())
    counts.examples = sum(shard.examples for shard in shards)
    counts.tokens = sum(shard.tokens for shard in shards)
    return ChunkResult(
        chunk.number, counts, tuple(shards), np.concatenate(lengths), np.concatenate(supervised)
    )


def _examples(
    chunk: Chunk, reader: ExampleReader[Any], options: PrepareOptions, counts: PrepareCounts
) -> Iterator[Rows]:
    """Yield the examples of a chunk, group by group."""
    for group in reader.groups(chunk.pieces):
        tried = PrepareCounts()
        try:
            rows = _fitted(group, reader, options, tried)
        except RowFault:
            # A later step may have found a fault in a row behind another's: the first is named.
            singles: Sequence[Any] = reader.singles(group)
            for single in singles if len(singles) > 1 else ():
                _fitted(single, reader, options, PrepareCounts())
            raise
        counts.add(tried)
        if len(rows.lengths):
            yield rows


def _fitted(group: Any, reader: ExampleReader[Any], options: PrepareOptions, counts: PrepareCounts) -> Rows:
    examples = reader.encode(group, counts)
    counts.documents += len(examples.lengths)
    return fit(examples, options, counts)
