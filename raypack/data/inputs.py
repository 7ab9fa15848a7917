"""What to prepare: files, folders and patterns, listed in the order in which they are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyarrow.fs import FileInfo, FileSelector, FileType

from raypack.arguments import type_name
from raypack.data.formats import FileFormat, format_of
from raypack.data.patterns import match_paths, split_pattern
from raypack.errors import PrepareError
from raypack.source.location import Location, locate


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file to read.

    Attributes:
        name: The file as messages name it: its path or URI.
        uri: The input that it came from, which tells its file system.
        path: Its path inside that file system.
        size: Its size in bytes.
        format: How to read it.
    """

    name: str
    uri: str
    path: str
    size: int
    format: FileFormat


def find_inputs(inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[InputFile, ...]:
    """List the files of the inputs in the order in which they are read.

    Inputs come in the order given; a folder is walked, and its files come sorted by path, as do those that a
    pattern matches. Names that begin with a dot are skipped in both.

    Args:
        inputs: One or more files, folders and patterns (``*`` and ``?`` within a name, ``[...]``, ``**``
            through folders), as paths or URIs. A file that is named just like a pattern is that file.

    Raises:
        TypeError: ``inputs`` is no path and no sequence of paths.
        PrepareError: an input does not exist, is empty, comes twice, or is of a kind that is not read.
    """
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    if not isinstance(inputs, Iterable) or isinstance(inputs, bytes):
        raise TypeError(f"inputs must be a path or a sequence of paths, got {type_name(inputs)}")
    files = [file for path in inputs for file in _find(path)]
    if not files:
        raise PrepareError("inputs must name at least one file or folder, got none")
    seen: set[str] = set()
    for file in files:
        if file.name in seen:
            raise PrepareError(f"{file.name} comes twice in the inputs; name each file once")
        seen.add(file.name)
    return tuple(files)


def _find(path: str | os.PathLike[str]) -> Iterator[InputFile]:
    place = locate(path)
    info = place.filesystem.get_file_info(place.path)
    if info.type == FileType.File:
        yield _input_file(place, info, place.label)
    elif info.type == FileType.Directory:
        found = _visible(place)
        if not found:
            raise PrepareError(f"input folder {place.label} holds no files")
        yield from _sorted_files(place, found)
    elif info.type == FileType.NotFound:
        yield from _find_matches(place, os.fspath(path))
    else:
        raise PrepareError(f"input {place.label} is neither a file nor a folder")


def _find_matches(place: Location, text: str) -> Iterator[InputFile]:
    split = split_pattern(text)
    if split is None:
        raise PrepareError(f"input {place.label} does not exist")
    folder, pattern = split
    base = locate(folder)
    found = []
    if base.kind() == FileType.Directory:
        listed = {_inner(base, info.path): info for info in _visible(base)}
        found = [listed[name] for name in match_paths(listed, pattern)]
    if not found:
        raise PrepareError(f"input {place.label} matches no file")
    yield from _sorted_files(base, found)


def _sorted_files(place: Location, found: Iterable[FileInfo]) -> Iterator[InputFile]:
    for info in sorted(found, key=lambda info: info.path.split("/")):
        yield _input_file(place, info, f"{place.label.rstrip('/')}/{_inner(place, info.path)}")


def _visible(place: Location) -> list[FileInfo]:
    """List all files below a folder but hidden ones."""
    selector = FileSelector(place.path, recursive=True)
    infos = place.filesystem.get_file_info(selector)
    return [
        info
        for info in infos
        if info.type == FileType.File
        and not any(part.startswith(".") for part in _inner(place, info.path).split("/"))
    ]


def _inner(place: Location, path: str) -> str:
    return path.strip("/").removeprefix(place.path.strip("/")).strip("/")


def _input_file(place: Location, info: FileInfo, name: str) -> InputFile:
    return InputFile(name, place.uri, info.path, info.size, format_of(info.base_name, name))
