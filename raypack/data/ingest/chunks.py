"""Cuts the input into chunks that can be read independently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from raypack.data.formats.inputs import InputFile
from raypack.data.formats.parquet import group_sizes
from raypack.data.formats.row import Piece

_PIECES_PER_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one task prepares.

    Attributes:
        number: Its place among the chunks, and in the names of its shards.
        pieces: Parts of files, in the order of the input; never empty.
    """

    number: int
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    def __str__(self) -> str:
        first, last = self.pieces[0], self.pieces[-1]
        return f"{first.file.name}, byte {first.start}, to {last.file.name}, byte {last.stop}"


def cut_chunks(files: Iterable[InputFile], chunk_bytes: int) -> tuple[Chunk, ...]:
    """Cut files into chunks of about ``chunk_bytes``: large files into parts, small files together.

    JSONL is cut by bytes and Parquet by row groups; what is compressed, and text, is never cut. The cuts
    depend on the input alone, so it gives the same shards on any cluster.

    Raises:
        PrepareError: a large Parquet file is damaged.
    """
    chunks: list[Chunk] = []
    pending: list[Piece] = []
    size = 0
    for piece in _pieces(files, chunk_bytes):
        length = piece.stop - piece.start
        if pending and (size + length > chunk_bytes or len(pending) == _PIECES_PER_CHUNK):
            chunks.append(Chunk(len(chunks), tuple(pending)))
            pending, size = [], 0
        pending.append(piece)
        size += length
    if pending:
        chunks.append(Chunk(len(chunks), tuple(pending)))
    return tuple(chunks)


def _pieces(files: Iterable[InputFile], chunk_bytes: int) -> Iterator[Piece]:
    for file in files:
        kind = file.format.kind
        if file.size <= chunk_bytes or kind == "text" or file.format.compression is not None:
            yield Piece(file, 0, file.size)
        elif kind == "parquet":
            yield from _group_pieces(file, chunk_bytes)
        else:
            for start in range(0, file.size, chunk_bytes):
                yield Piece(file, start, min(start + chunk_bytes, file.size))


def _group_pieces(file: InputFile, chunk_bytes: int) -> Iterator[Piece]:
    """Yield runs of row groups of about ``chunk_bytes``; the bytes of the file are shared out among them."""
    sizes = group_sizes(file)
    if len(sizes) < 2:
        yield Piece(file, 0, file.size)
        return
    ends = np.cumsum(np.maximum(sizes, 1))
    places = [0, *(int(end * file.size // ends[-1]) for end in ends.tolist())]
    first = 0
    for group in range(1, len(sizes) + 1):
        is_last = group == len(sizes)
        if is_last or places[group + 1] - places[first] > chunk_bytes:
            yield Piece(file, places[first], places[group], (first, group))
            first = group
