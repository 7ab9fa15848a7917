"""Reads the documents of a piece of input, one after the other, and names the first bad one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyarrow import NativeFile

from raypack.arguments import shown, type_name
from raypack.data.inputs import InputFile, Piece
from raypack.source.location import locate

_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it came from.

    Attributes:
        text: The text, which is valid Unicode.
        piece: The piece it began in.
        line: Its line, counted from 1 from the first line that begins in the piece.
    """

    text: str
    piece: Piece
    line: int


class DocumentFault(Exception):  # noqa: N818
    """A document that cannot be prepared; carries file and line to the driver."""

    def __init__(self, piece: Piece, line: int, reason: str) -> None:
        super().__init__(reason)
        self.piece = piece
        self.line = line
        self.reason = reason

    def located(self) -> str:
        """Return the message with the line counted from the beginning of the file."""
        line = self.line + _lines_before(self.piece)
        return f"{self.piece.file.name}, line {line}: {self.reason}"


def read_documents(piece: Piece, text_field: str) -> Iterator[Document]:
    """Yield the documents that begin in a piece.

    Raises:
        DocumentFault: the next document is bad.
    """
    if piece.file.is_jsonl:
        yield from _read_lines(piece, text_field)
    else:
        data = _read_whole(piece)
        yield Document(_decode(piece, 1, data), piece, 1)


def _open(file: InputFile) -> NativeFile:
    return locate(file.uri).filesystem.open_input_file(file.path)


def _read_whole(piece: Piece) -> bytes:
    with _open(piece.file) as stream:
        data: bytes = stream.read()
    if len(data) != piece.file.size:
        raise DocumentFault(piece, 1, _changed(piece.file, len(data)))
    return data.removeprefix(_BOM)


def _read_lines(piece: Piece, text_field: str) -> Iterator[Document]:
    # Only b"\n" ends a line: JSON strings may hold Unicode's other line ends.
    for number, line in enumerate(_own_lines(piece).split(b"\n"), 1):
        if line.isspace() or not line:
            continue
        yield Document(_text_of(piece, number, line, text_field), piece, number)


def _own_lines(piece: Piece) -> bytes:
    """Return all lines whose first byte lies in the piece, without the last newline."""
    with _open(piece.file) as stream:
        if stream.size() != piece.file.size:
            raise DocumentFault(piece, 1, _changed(piece.file, stream.size()))
        # The byte before tells whether a line begins right at the start.
        begin = max(piece.start - 1, 0)
        stream.seek(begin)
        blocks = [stream.read(piece.stop - begin)]
        if piece.start:
            newline = blocks[0].find(b"\n")
            if newline < 0 or begin + newline + 1 >= piece.stop:
                return b""
            blocks[0] = blocks[0][newline + 1 :]
        while not blocks[-1].endswith(b"\n") and (block := stream.read(_BLOCK_BYTES)):
            newline = block.find(b"\n")
            blocks.append(block if newline < 0 else block[: newline + 1])
    data = b"".join(blocks).removesuffix(b"\n")
    return data if piece.start else data.removeprefix(_BOM)


def _text_of(piece: Piece, number: int, line: bytes, text_field: str) -> str:
    try:
        record: Any = json.loads(_decode(piece, number, line))
    except (ValueError, RecursionError) as error:
        raise DocumentFault(piece, number, f"invalid JSON: {error}") from error
    if not isinstance(record, dict):
        raise DocumentFault(piece, number, f"a line must be a JSON object, got {type_name(record)}")
    if text_field not in record:
        raise DocumentFault(
            piece,
            number,
            f"field {text_field!r} is missing (there are {shown(sorted(record))}); "
            "name the one with the text by text_field",
        )
    text = record[text_field]
    if not isinstance(text, str):
        raise DocumentFault(piece, number, f"field {text_field!r} must be a string, got {type_name(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DocumentFault(
            piece, number, f"field {text_field!r} holds half a surrogate pair, which is no text"
        ) from error
    return text


def _decode(piece: Piece, number: int, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        number += data.count(b"\n", 0, error.start)
        raise DocumentFault(
            piece, number, f"invalid UTF-8 (byte 0x{data[error.start]:02x}); convert the file to UTF-8"
        ) from error


def _changed(file: InputFile, size: int) -> str:
    return f"the file had {file.size} bytes when the job began and has {size} now; do not change it meanwhile"


def _lines_before(piece: Piece) -> int:
    """Count the lines of the file that begin before the piece's own first line."""
    if not piece.start:
        return 0
    count, left = 0, piece.start - 1
    with _open(piece.file) as stream:
        while left and (block := stream.read(min(left, _BLOCK_BYTES))):
            count += block.count(b"\n")
            left -= len(block)
        # The newline that ends the line before the piece's first own line may lie past the start.
    return count + 1
