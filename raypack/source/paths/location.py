"""Where a source lies: a local path or the URI of any file system."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

import fsspec
from pyarrow import ArrowInvalid
from pyarrow.fs import FileSystem, FileType, FSSpecHandler, LocalFileSystem, PyFileSystem

from raypack.arguments import type_name
from raypack.errors import SourceError

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*)(://|::)")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Characters that a terminal may obey, which no path of a source may have."""
_SECRET = re.compile(r"//[^/@]*:[^/@]*@")
# Arrow brings its own clients for these; anything else goes through fsspec.
_ARROW_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "mock")


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file system.

    Attributes:
        uri: The place as the user wrote it; a local path is made absolute.
        filesystem: The file system that holds it.
        path: The place inside ``filesystem``.
        is_local: Whether files can be memory-mapped where they lie.
    """

    uri: str
    filesystem: FileSystem
    path: str
    is_local: bool

    def child(self, name: str) -> str:
        """Return the path inside the file system of the file ``name`` in this folder."""
        return f"{self.path.rstrip('/')}/{name}"

    def child_uri(self, name: str) -> str:
        """Return the file ``name`` in this folder on its own: a path, or a URI with its options."""
        if self.is_local:
            return f"{self.uri.rstrip('/')}/{name}"
        base, mark, options = self.uri.partition("?")
        # Arrow reads the escapes of a URI; fsspec takes it as it stands.
        child = name if isinstance(self.filesystem, PyFileSystem) else quote(name)
        return f"{base.rstrip('/')}/{child}{mark}{options}"

    @property
    def label(self) -> str:
        """The place as messages show it: without the options and secrets that a URI may carry."""
        return self.uri if self.is_local else public(self.uri)

    def kind(self) -> FileType:
        """Return whether a file, a folder or nothing lies here."""
        return self.filesystem.get_file_info(self.path).type


def locate(path: str | os.PathLike[str]) -> Location:
    """Find the file system of a path or URI.

    Args:
        path: A local path, a ``file://`` URI, or a URI that Arrow (S3, GCS, Azure, HDFS) or fsspec knows.

    Raises:
        TypeError: ``path`` is neither a str nor a path object.
        SourceError: it is empty, or no client for its scheme is installed.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a str or a path object, got {type_name(path)}")
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path must be a str or a path object, got one of {type_name(text)}")
    if not text:
        raise SourceError("path must be a non-empty str, got ''; name a folder")
    match = _SCHEME.match(text)
    if match is None:
        return _local(text)
    if match.group(1).lower() == "file" and match.group(2) == "://":
        return _local(_path_of_file_uri(text))
    return _remote(text, match.group(1).lower())


def public(uri: str) -> str:
    """Return a URI without the options and secrets that it may carry; a local path as it is."""
    return _SECRET.sub("//", uri.split("?", 1)[0]) if _SCHEME.match(uri) else uri


def store_of(path: str) -> str | None:
    """Return which store a URI reaches: its scheme, host or bucket, and options; None for a local path.

    Nothing is opened and no host is asked.
    """
    match = _SCHEME.match(path)
    if match is None or (match.group(1).lower(), match.group(2)) == ("file", "://"):
        return None
    if match.group(2) == "::":  # a chain of file systems: as a whole, it is like no other
        return path
    rest, _, options = path[match.end() :].partition("?")
    return f"{match.group(1).lower()}://{rest.split('/', 1)[0]}?{options}"


def refuse_secret(path: str | os.PathLike[str], keeper: str) -> None:
    """Refuse a URI that holds a password or a key where it would be written down.

    Args:
        path: A local path or a URI.
        keeper: What would keep it, for the message.

    Raises:
        SourceError: It holds one; the message does not show it.
    """
    text = os.fspath(path)
    if _SCHEME.match(text) and _SECRET.search(text):
        raise SourceError(
            f"{public(text)} must not be named with a key in its URI, which {keeper} would keep; "
            "give the key by the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a local path made absolute, so that it means the same in every process; a URI as it is."""
    text = os.fspath(path)
    return text if not text or _SCHEME.match(text) else os.path.abspath(os.path.expanduser(text))


def _local(path: str) -> Location:
    whole = absolute(path)
    return Location(whole, LocalFileSystem(), whole, True)


def _path_of_file_uri(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise SourceError(f"a file:// URI must name no host, got {uri!r}; write file:///folder")
    # '?' and '#' are legal in file names, so what urlsplit took for a query belongs to the path.
    return unquote(uri[len("file://") + len(parts.netloc) :])


def _remote(uri: str, scheme: str) -> Location:
    if scheme in _ARROW_SCHEMES:
        try:
            filesystem, path = FileSystem.from_uri(uri)
        except ArrowInvalid as error:
            fault = str(error).replace(uri, public(uri))
            raise SourceError(f"path {public(uri)!r} is no URI that Arrow can read: {fault}") from error
        return Location(uri, filesystem, path, False)
    try:
        inner, path = fsspec.core.url_to_fs(uri.removeprefix("fsspec+"))
    except (ValueError, ImportError) as error:
        raise SourceError(
            f"no file system for {public(uri)!r}: {error}; install the fsspec package of {scheme!r}, "
            "or copy the data to a path that every node sees"
        ) from error
    return Location(uri, PyFileSystem(FSSpecHandler(inner)), path, False)
