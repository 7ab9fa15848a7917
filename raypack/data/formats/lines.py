"""Reads text files and JSONL, one document after the other, and names the first bad one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from raypack.arguments import type_name
from raypack.data.formats.byte_stream import check_size, open_file, read_blocks
from raypack.data.formats.columns import RowColumns
from raypack.data.formats.row import Piece, Row, RowFault

_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 20


def read_text(piece: Piece) -> Iterator[Row]:
    """Yield the one document of a text file."""
    data = b"".join(read_blocks(piece)).removeprefix(_BOM)
    yield Row({"text": _decode(piece, 1, data)}, piece, 1)


def read_lines(piece: Piece, columns: RowColumns) -> Iterator[Row]:
    """Yield the rows that begin in a piece of a JSONL file.

    Raises:
        RowFault: the next row is bad.
    """
    lines = _whole_lines(piece) if piece.file.format.compression is not None else _own_lines(piece)
    for number, line in enumerate(lines, 1):
        if line and not line.isspace():
            yield Row(_fields_of(piece, number, line, columns), piece, number)


def _whole_lines(piece: Piece) -> Iterator[bytes]:
    """Yield the lines of a whole file as it is unpacked."""
    rest: list[bytes] = []
    is_first = True
    for block in read_blocks(piece):
        if is_first:
            block = block.removeprefix(_BOM)
            is_first = False
        # Only b"\n" ends a line: JSON strings may hold Unicode's other line ends.
        first, *others = block.split(b"\n")
        rest.append(first)
        if others:
            yield b"".join(rest)
            yield from others[:-1]
            rest = [others[-1]]
    yield b"".join(rest)


def _own_lines(piece: Piece) -> Iterator[bytes]:
    """Yield the lines whose first byte lies in the piece."""
    with open_file(piece.file) as stream:
        check_size(piece, stream.size())
        # The byte before tells whether a line begins right at the start.
        begin = max(piece.start - 1, 0)
        stream.seek(begin)
        blocks = [stream.read(piece.stop - begin)]
        if piece.start:
            newline = blocks[0].find(b"\n")
            if newline < 0 or begin + newline + 1 >= piece.stop:
                return
            blocks[0] = blocks[0][newline + 1 :]
        while not blocks[-1].endswith(b"\n") and (block := stream.read(_BLOCK_BYTES)):
            newline = block.find(b"\n")
            blocks.append(block if newline < 0 else block[: newline + 1])
    data = b"".join(blocks).removesuffix(b"\n")
    yield from (data if piece.start else data.removeprefix(_BOM)).split(b"\n")


def _fields_of(piece: Piece, number: int, line: bytes, columns: RowColumns) -> dict[str, Any]:
    try:
        record: Any = json.loads(_decode(piece, number, line))
    except (ValueError, RecursionError) as error:
        raise RowFault(piece, number, f"invalid JSON: {error}") from error
    if not isinstance(record, dict):
        raise RowFault(piece, number, f"a line must be a JSON object, got {type_name(record)}")
    if missing := columns.missing(record):
        raise RowFault(piece, number, missing)
    return {role: record[name] for role, name in columns.names.items() if name in record}


def _decode(piece: Piece, number: int, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        number += data.count(b"\n", 0, error.start)
        raise RowFault(
            piece, number, f"invalid UTF-8 (byte 0x{data[error.start]:02x}); convert the file to UTF-8"
        ) from error


def lines_before(piece: Piece) -> int:
    """Count the lines of the file that begin before the piece's own first line."""
    if not piece.start:
        return 0
    count, left = 0, piece.start - 1
    with open_file(piece.file) as stream:
        while left and (block := stream.read(min(left, _BLOCK_BYTES))):
            count += block.count(b"\n")
            left -= len(block)
        # The newline that ends the line before the piece's first own line may lie past the start.
    return count + 1
