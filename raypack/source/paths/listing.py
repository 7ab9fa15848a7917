"""Files, folders and patterns, listed in the order in which they are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyarrow.fs import FileInfo, FileSelector, FileType

from raypack.arguments import type_name
from raypack.errors import RaypackError, SourceError
from raypack.source.paths.location import Location, locate
from raypack.source.paths.patterns import match_paths, split_pattern

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that was found.

    Attributes:
        name: The file as messages name it: its path or URI.
        place: The input that it came from, which tells its file system.
        path: Its path inside that file system.
        size: Its size in bytes.
        modified: When it was last changed, in nanoseconds; None where the file system does not say.
    """

    name: str
    place: Location
    path: str
    size: int
    modified: int | None

    @property
    def base_name(self) -> str:
        """The file's own name."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def uri(self) -> str:
        """The file alone, as a path or as a URI with the options of its input."""
        inner = _inner(self.place, self.path)
        return self.place.child_uri(inner) if inner else self.place.uri


def find_files(paths: Paths, *, name: str, error: type[RaypackError]) -> tuple[FoundFile, ...]:
    """List the files of paths.

    Paths come in the order given; a folder is walked, and its files come sorted by path, as do those that a
    pattern matches. Names that begin with a dot are skipped in both.

    Args:
        paths: One or more files, folders and patterns (``*`` and ``?`` within a name, ``[...]``, ``**``
            through folders), as paths or URIs. A file that is named just like a pattern is that file.
        name: The argument's name, for messages.
        error: What is raised.

    Raises:
        TypeError: ``paths`` is no path and no sequence of paths.
        error: a path does not exist, is empty, or comes twice.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not isinstance(paths, Iterable) or isinstance(paths, bytes):
        raise TypeError(f"{name} must be a path or a sequence of paths, got {type_name(paths)}")
    files = [file for path in paths for file in _find(path, error)]
    if not files:
        raise error(f"{name} must name at least one file or folder, got none")
    seen: set[str] = set()
    for file in files:
        if file.name in seen:
            raise error(f"{file.name} comes twice in the {name}; name each file once")
        seen.add(file.name)
    return tuple(files)


def _find(path: str | os.PathLike[str], error: type[RaypackError]) -> Iterator[FoundFile]:
    try:
        place = locate(path)
    except SourceError:
        # A pattern need not be a legal URI.
        if split_pattern(os.fspath(path)) is None:
            raise
        yield from _matches(os.fspath(path), error)
        return
    info = place.filesystem.get_file_info(place.path)
    if info.type == FileType.File:
        yield _found(place, info)
    elif info.type == FileType.Directory:
        found = _visible(place)
        if not found:
            raise error(f"input folder {place.label} holds no files")
        yield from _sorted(place, found)
    elif info.type == FileType.NotFound:
        yield from _matches(os.fspath(path), error)
    else:
        raise error(f"input {place.label} is neither a file nor a folder")


def _matches(text: str, error: type[RaypackError]) -> Iterator[FoundFile]:
    split = split_pattern(text)
    if split is None:
        raise error(f"input {locate(text).label} does not exist")
    folder, pattern = split
    base = locate(folder)
    label = f"{base.label.rstrip('/')}/{pattern}"
    found = []
    if base.kind() == FileType.Directory:
        listed = {_inner(base, info.path): info for info in _visible(base)}
        try:
            found = [listed[path] for path in match_paths(listed, pattern)]
        except ValueError as reason:
            raise error(f"input {label}: {reason}") from reason
    if not found:
        raise error(f"input {label} matches no file")
    yield from _sorted(base, found)


def _sorted(place: Location, found: Iterable[FileInfo]) -> Iterator[FoundFile]:
    for info in sorted(found, key=lambda info: info.path.split("/")):
        yield _found(place, info)


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


def _found(place: Location, info: FileInfo) -> FoundFile:
    inner = _inner(place, info.path)
    name = f"{place.label.rstrip('/')}/{inner}" if inner else place.label
    return FoundFile(name, place, info.path, info.size, modified_of(info))


def modified_of(info: FileInfo) -> int | None:
    """Return when a file was last changed, in nanoseconds; None where the file system does not say."""
    return None if info.mtime is None else int(info.mtime_ns)
