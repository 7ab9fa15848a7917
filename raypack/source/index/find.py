"""The files that an index is made of."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from pyarrow.fs import FileType

from raypack.arguments import shown
from raypack.errors import SourceError
from raypack.source.index.originals import kind_of
from raypack.source.manifest.record import OriginalFile
from raypack.source.paths.listing import Paths, find_files
from raypack.source.paths.location import Location, locate, refuse_secret


def find_originals(paths: Paths) -> tuple[OriginalFile, ...]:
    """List the files of paths in the order of their examples.

    Args:
        paths: Files, folders and patterns of Parquet and Arrow IPC files, and folders that Hugging Face
            datasets saved.

    Raises:
        TypeError: ``paths`` is no path and no sequence of paths.
        SourceError: a path does not exist, or is no such file.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    listed = [inner for path in paths for inner in _expand(path)]
    found = find_files(listed, name="paths", error=SourceError)
    return tuple(_original(file.uri, file.base_name, file.size, file.modified) for file in found)


def _original(uri: str, base_name: str, size: int, modified: int | None) -> OriginalFile:
    place = locate(uri)
    kind = kind_of(place, base_name)
    if kind is None:
        raise SourceError(
            f"{place.label} is neither Parquet (.parquet) nor Arrow IPC (.arrow, .feather); leave it out"
        )
    return OriginalFile(uri=uri, kind=kind, bytes=size, modified=modified)


def _expand(path: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """Yield the files of a folder that Hugging Face datasets saved, in its own order; else the path."""
    refuse_secret(path, "an index")
    place = locate(path)
    if place.kind() != FileType.Directory:
        yield path
        return
    splits = _read_json(place, "dataset_dict.json")
    if splits is not None:
        names = splits.get("splits") if isinstance(splits, dict) else splits
        raise SourceError(f"{place.label} holds several datasets; name one of them: {shown(names)}")
    state = _read_json(place, "state.json")
    if state is None:
        yield path
        return
    for name in _data_files(place, state):
        yield place.child_uri(name)


def _data_files(place: Location, state: Any) -> list[str]:
    if isinstance(state, dict) and state.get("_indices_data_files"):
        raise SourceError(
            f"{place.label} holds a selection of its rows as indices; save it again after flatten_indices()"
        )
    try:
        names = [entry["filename"] for entry in state["_data_files"]]
    except (TypeError, KeyError) as error:
        raise SourceError(f"{place.label}/state.json names no data files; save the dataset again") from error
    for name in names:
        if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/"):
            raise SourceError(f"{place.label}/state.json names the file {shown(name)}, which lies elsewhere")
    if not names:
        raise SourceError(f"{place.label} is a dataset without files; there is nothing to index")
    return names


def _read_json(place: Location, name: str) -> Any:
    """Return what a JSON file of a folder holds; None where there is no such file."""
    path = place.child(name)
    if place.filesystem.get_file_info(path).type != FileType.File:
        return None
    with place.filesystem.open_input_stream(path) as stream:
        try:
            return json.loads(stream.read())
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{place.label}/{name} is no JSON: {error}; save the dataset again") from error
