"""What one task does: read a chunk, tokenise it, write its shard, return a row about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raypack.data.inputs import Chunk
from raypack.data.prepare_documents import Document, DocumentFault, read_documents
from raypack.data.prepare_options import PrepareCounts, PrepareOptions
from raypack.data.tokenizers import TextTokenizer
from raypack.errors import RaypackError
from raypack.source.location import locate
from raypack.source.manifest import ShardEntry
from raypack.source.rows import Rows, join_rows
from raypack.source.shards import shard_file, write_shard

_GROUP_CHARACTERS = 1 << 20
_GROUP_DOCUMENTS = 1024
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What became of a chunk.

    Attributes:
        number: The chunk's number.
        counts: What happened to its documents.
        shard: Its shard; None where it gave no example, or where there is a fault.
        lengths: int32 (n,), tokens of each example.
        fault: The first bad document, or why the shard could not be written; None where all is well.
    """

    number: int
    counts: PrepareCounts
    shard: ShardEntry | None
    lengths: NDArray[np.int32]
    fault: str | None = None

    def to_table(self) -> pa.Table:
        """Return the result as a table of one row."""
        shard = None if self.shard is None else asdict(self.shard)
        record = {"number": self.number, "counts": self.counts.to_dict(), "shard": shard, "fault": self.fault}
        offsets = pa.array([0, len(self.lengths)], pa.int64())
        lengths = pa.LargeListArray.from_arrays(offsets, pa.array(self.lengths, pa.int32()))
        return pa.table({"record": [json.dumps(record)], "lengths": lengths})


def read_results(table: pa.Table) -> Iterator[ChunkResult]:
    """Turn rows made by `ChunkResult.to_table` back into results."""
    lengths = table.column("lengths").combine_chunks()
    for row, text in enumerate(table.column("record").to_pylist()):
        record = json.loads(text)
        shard = record["shard"]
        yield ChunkResult(
            record["number"],
            PrepareCounts(**record["counts"]),
            None if shard is None else ShardEntry(**shard),
            lengths[row].values.to_numpy(),
            record["fault"],
        )


def failed(number: int, reason: str) -> ChunkResult:
    """Return the result of a chunk that failed."""
    return ChunkResult(number, PrepareCounts(), None, np.zeros(0, np.int32), reason)


def prepare_chunk(chunk: Chunk, out: str, tokenizer: TextTokenizer, options: PrepareOptions) -> ChunkResult:
    """Prepare a chunk; doing it again writes the same shard again.

    Args:
        chunk: What to read.
        out: The source's folder, which exists.
        tokenizer: Turns text into ids.
        options: What the user chose.

    Returns:
        The result. A bad document, or a file that cannot be read or written, is a fault in it, not an
        error: so the driver can name the first fault in the order of the input.
    """
    counts = PrepareCounts(bytes=chunk.bytes)
    try:
        parts = [
            rows for group in _groups(chunk, options) for rows in _examples(group, tokenizer, options, counts)
        ]
        if not parts:
            return ChunkResult(chunk.number, counts, None, np.zeros(0, np.int32))
        rows = join_rows(parts)
        counts.examples, counts.tokens = len(rows.lengths), len(rows.input_ids)
        shard = write_shard(locate(out), shard_file(chunk.number), rows)
    except DocumentFault as fault:
        return failed(chunk.number, fault.located())
    except (OSError, MemoryError, RaypackError) as error:
        return failed(chunk.number, f"{chunk}: {type(error).__name__}: {error}")
    return ChunkResult(chunk.number, counts, shard, rows.lengths)


def _groups(chunk: Chunk, options: PrepareOptions) -> Iterator[list[Document]]:
    """Yield documents in groups that a tokenizer takes at once."""
    group: list[Document] = []
    size = 0
    try:
        for piece in chunk.pieces:
            for document in read_documents(piece, options.text_field):
                group.append(document)
                size += len(document.text)
                if size >= _GROUP_CHARACTERS or len(group) == _GROUP_DOCUMENTS:
                    yield group
                    group, size = [], 0
    except DocumentFault:
        # What comes before the bad document may hold a fault that comes first.
        if group:
            yield group
        raise
    if group:
        yield group


def _examples(
    group: list[Document], tokenizer: TextTokenizer, options: PrepareOptions, counts: PrepareCounts
) -> Iterator[Rows]:
    """Yield the examples of a group of documents."""
    counts.documents += len(group)
    kept = [document for document in group if document.text]
    lengths, ids = _encode(kept, tokenizer)
    counts.empty += len(group) - int(np.count_nonzero(lengths))
    limit = _INT32_MAX if options.max_length is None else options.max_length
    over = np.flatnonzero(lengths > limit)
    if len(over) and (options.oversize == "error" or options.max_length is None):
        document = kept[int(over[0])]
        raise DocumentFault(document.piece, document.line, _too_long(int(lengths[over[0]]), limit))
    if len(over):
        lengths, ids = _fit(lengths, ids, limit, options.oversize, counts)
    kept_lengths = lengths[lengths > 0].astype(np.int32)
    if len(kept_lengths):
        yield Rows(kept_lengths, ids, None)


def _encode(
    documents: list[Document], tokenizer: TextTokenizer
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    try:
        lengths, ids = tokenizer.encode([document.text for document in documents])
        _check_encoded(lengths, ids, len(documents))
        return lengths, ids
    except Exception as error:  # tokenizers raise what they like; the document is found one by one
        if len(documents) == 1:
            document = documents[0]
            raise DocumentFault(document.piece, document.line, f"the tokenizer failed: {error}") from error
    parts = [_encode([document], tokenizer) for document in documents]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _check_encoded(lengths: NDArray[np.int64], ids: NDArray[np.int32], documents: int) -> None:
    if lengths.shape != (documents,) or ids.shape != (lengths.sum(),) or ids.dtype != np.int32:
        raise ValueError(f"it gave {ids.dtype} ids of shape {ids.shape}, and {lengths.shape} lengths")
    if len(ids) and (ids.min() < 0 or lengths.min() < 0):
        raise ValueError(f"it gave the id {int(ids.min())}; ids are at least 0")


def _too_long(length: int, limit: int) -> str:
    return (
        f"the document has {length} tokens, more than max_length {limit}; raise it, or choose "
        "oversize split, truncate or drop"
    )


def _fit(
    lengths: NDArray[np.int64], ids: NDArray[np.int32], limit: int, oversize: str, counts: PrepareCounts
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return lengths (m,) of at most ``limit`` and ids (t,), with the too long documents cut or left out."""
    is_over = lengths > limit
    if oversize == "split":
        # Pieces of `limit`, and one of what is left over.
        pieces = np.where(is_over, -(-lengths // limit), 1)
        cut = np.full(int(pieces.sum()), limit, np.int64)
        lasts = np.cumsum(pieces) - 1
        cut[lasts] = lengths - (pieces - 1) * limit
        counts.split += int(is_over.sum())
        counts.pieces += int(pieces[is_over].sum())
        return cut, ids
    if oversize == "truncate":
        counts.truncated += int(is_over.sum())
        kept = np.minimum(lengths, limit)
    else:
        counts.dropped += int(is_over.sum())
        kept = np.where(is_over, 0, lengths)
    # (t,) the place of each token in its document, and so whether it stays.
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(ids)) - np.repeat(starts, lengths)
    return kept, ids[place < np.repeat(kept, lengths)]
