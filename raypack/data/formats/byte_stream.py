"""Opens a file of the input as a stream of bytes, unpacked where it is compressed."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import NativeFile

from raypack.data.formats.inputs import InputFile
from raypack.data.formats.row import Piece, RowFault
from raypack.source.paths.location import locate

_BLOCK_BYTES = 1 << 20


def open_file(file: InputFile) -> NativeFile:
    """Open a file as it lies there, to be read at any place."""
    return locate(file.uri).filesystem.open_input_file(file.path)


def check_size(piece: Piece, size: int) -> None:
    """Raise RowFault where the file has another size than when the job began."""
    if size != piece.file.size:
        raise RowFault(
            piece,
            None,
            f"the file had {piece.file.size} bytes when the job began and has {size} now; "
            "do not change it meanwhile",
        )


def read_blocks(piece: Piece) -> Iterator[bytes]:
    """Yield the whole file of a piece in blocks, unpacked.

    Raises:
        RowFault: the file changed, or cannot be unpacked.
    """
    compression = piece.file.format.compression
    with open_file(piece.file) as raw:
        check_size(piece, raw.size())
        if compression is None:
            yield from iter(lambda: raw.read(_BLOCK_BYTES), b"")
            return
        if not piece.file.size:
            raise RowFault(piece, None, _broken(compression, "it is empty"))
        try:
            with _unpacked(raw, compression) as stream:
                while block := stream.read(_BLOCK_BYTES):
                    yield block
        except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
            raise RowFault(piece, None, _broken(compression, str(error))) from error


def _broken(compression: str, reason: str) -> str:
    return f"the file is broken, or not {compression} as its name says: {reason}"


@contextmanager
def _unpacked(raw: NativeFile, compression: str) -> Iterator[Any]:
    if compression == "xz":  # the one that Arrow does not read
        with lzma.open(raw) as stream:
            yield stream
        return
    with pa.CompressedInputStream(raw, compression) as stream:
        yield stream
