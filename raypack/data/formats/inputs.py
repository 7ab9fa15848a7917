"""What to prepare: the files of the inputs, each with its format."""

from __future__ import annotations

from dataclasses import dataclass

from raypack.data.formats.file_format import FileFormat, format_of
from raypack.errors import PrepareError
from raypack.source.paths.listing import Paths, find_files


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


def find_inputs(inputs: Paths) -> tuple[InputFile, ...]:
    """List the files of the inputs in the order in which they are read; see `find_files`.

    Raises:
        TypeError: ``inputs`` is no path and no sequence of paths.
        PrepareError: an input does not exist, is empty, comes twice, or is of a kind that is not read.
    """
    return tuple(
        InputFile(file.name, file.place.uri, file.path, file.size, format_of(file.base_name, file.name))
        for file in find_files(inputs, name="inputs", error=PrepareError)
    )
