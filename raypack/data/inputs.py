"""What to prepare: files and folders, cut into chunks that depend on nothing but themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyarrow.fs import FileInfo, FileSelector, FileType

from raypack.arguments import type_name
from raypack.errors import PrepareError
from raypack.source.location import Location, locate

JSONL_SUFFIXES = (".jsonl", ".ndjson")
_PIECES_PER_CHUNK = 1024

_UNPACK = "unpack it first"
_CONVERT = "write its texts to a .jsonl file first, one document a line"
_REFUSED = {
    **dict.fromkeys((".gz", ".zst", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz", ".7z"), _UNPACK),
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".orc", ".avro", ".tfrecord"), _CONVERT),
    **dict.fromkeys((".json", ".csv", ".tsv", ".xlsx", ".pdf", ".docx", ".epub"), _CONVERT),
    **dict.fromkeys((".bin", ".npy", ".npz", ".pt", ".pkl", ".safetensors"), "it holds no text"),
}


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file to read.

    Attributes:
        name: The file as messages name it: its path or URI.
        uri: The input that it came from, which tells its file system.
        path: Its path inside that file system.
        size: Its size in bytes.
        is_jsonl: Whether each line is a document; otherwise the whole file is one.
    """

    name: str
    uri: str
    path: str
    size: int
    is_jsonl: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file: the documents that begin in the bytes [start, stop).

    Attributes:
        file: The file.
        start: First byte.
        stop: Byte past the last.
    """

    file: InputFile
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one task prepares.

    Attributes:
        number: Its place among the chunks, and in the name of its shard.
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


def find_inputs(inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[InputFile, ...]:
    """List the files of the inputs in the order in which they are read.

    Inputs come in the order given; a folder is walked and its files come sorted by path. Names that begin
    with a dot are skipped in folders.

    Args:
        inputs: One or more files and folders, as paths or URIs.

    Raises:
        TypeError: ``inputs`` is no path and no sequence of paths.
        PrepareError: an input does not exist, is empty, comes twice, or is of a kind that is not read.
    """
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    if not isinstance(inputs, Iterable) or isinstance(inputs, bytes):
        raise TypeError(f"inputs must be a path or a sequence of paths, got {type_name(inputs)}")
    files = [file for path in inputs for file in _find(locate(path))]
    if not files:
        raise PrepareError("inputs must name at least one file or folder, got none")
    seen: set[str] = set()
    for file in files:
        if file.name in seen:
            raise PrepareError(f"{file.name} comes twice in the inputs; name each file once")
        seen.add(file.name)
    return tuple(files)


def _find(place: Location) -> Iterator[InputFile]:
    info = place.filesystem.get_file_info(place.path)
    if info.type == FileType.NotFound:
        raise PrepareError(f"input {place.label} does not exist")
    if info.type == FileType.File:
        yield _input_file(place, info, place.label)
        return
    if info.type != FileType.Directory:
        raise PrepareError(f"input {place.label} is neither a file nor a folder")
    found = [file for file in _walk(place) if not _is_hidden(place, file.path)]
    if not found:
        raise PrepareError(f"input folder {place.label} holds no files")
    for file in sorted(found, key=lambda file: file.path.split("/")):
        yield _input_file(place, file, f"{place.label.rstrip('/')}/{_inner(place, file.path)}")


def _walk(place: Location) -> list[FileInfo]:
    selector = FileSelector(place.path, recursive=True)
    return [info for info in place.filesystem.get_file_info(selector) if info.type == FileType.File]


def _inner(place: Location, path: str) -> str:
    return path.strip("/").removeprefix(place.path.strip("/")).strip("/")


def _is_hidden(place: Location, path: str) -> bool:
    return any(part.startswith(".") for part in _inner(place, path).split("/"))


def _input_file(place: Location, info: FileInfo, name: str) -> InputFile:
    suffix = os.path.splitext(info.base_name)[1].lower()
    if suffix in _REFUSED:
        raise PrepareError(f"{name} is a {suffix} file, which is not read; {_REFUSED[suffix]}")
    return InputFile(name, place.uri, info.path, info.size, suffix in JSONL_SUFFIXES)


def cut_chunks(files: Iterable[InputFile], chunk_bytes: int) -> tuple[Chunk, ...]:
    """Cut files into chunks of about ``chunk_bytes``: large JSONL files by bytes, small files together.

    The cuts depend on names and sizes alone, so the same input gives the same shards on any cluster.
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
        if not file.is_jsonl or file.size <= chunk_bytes:
            yield Piece(file, 0, file.size)
            continue
        for start in range(0, file.size, chunk_bytes):
            yield Piece(file, start, min(start + chunk_bytes, file.size))
