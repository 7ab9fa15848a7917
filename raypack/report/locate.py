"""Find the last checkpoint of a run, offline: no Ray is started."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pyarrow.fs as pafs

from raypack.arguments import shown
from raypack.errors import CheckpointError, SourceError
from raypack.source.location import locate
from raypack.train.checkpoint_files import FOLDER

_SNAPSHOT = "checkpoint_manager_snapshot.json"
_WAITS_S = (0.1, 0.3, 0.0)


def open_path(path: str | os.PathLike[str]) -> tuple[pafs.FileSystem, str]:
    """Return the pyarrow filesystem of a path or a URI that Arrow or fsspec knows, and the path on it.

    Raises:
        CheckpointError: ``path`` is empty, or a URI of no known file system.
    """
    text = os.fspath(path)
    if not text or "\0" in text:
        raise CheckpointError(f"the run must be a path or a URI, got {shown(text)}")
    try:
        place = locate(text)
    except SourceError as error:
        raise CheckpointError(f"the run must be a path or a URI: {error}") from error
    return place.filesystem, place.path.rstrip("/") or "/"


def last_checkpoint(filesystem: pafs.FileSystem, path: str) -> str:
    """Return the path of the last registered checkpoint of a run, or ``path`` if it is a checkpoint.

    Only what Ray Train registered counts: a folder of an upload that was cut short is not in its list.

    Raises:
        CheckpointError: ``path`` is neither a run nor a checkpoint, or no checkpoint was registered.
    """
    if filesystem.get_file_info(f"{path}/{FOLDER}").type == pafs.FileType.Directory:
        return path
    snapshot = f"{path}/{_SNAPSHOT}"
    if filesystem.get_file_info(snapshot).type != pafs.FileType.File:
        raise CheckpointError(
            f"{path} must be the directory of a run (it has no {_SNAPSHOT}) or of a checkpoint (it has no "
            f"{FOLDER}/ folder): give <storage_path>/<run name>"
        )
    try:
        latest = _content(filesystem, snapshot)["latest_checkpoint_result"]
        name = None if latest is None else latest["checkpoint_dir_name"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{snapshot} is not Ray Train's list of checkpoints: {error!r}") from error
    if not isinstance(name, str):
        raise CheckpointError(f"{path} has no registered checkpoint yet: the run reported none")
    return f"{path}/{name}"


def _content(filesystem: pafs.FileSystem, snapshot: str) -> Any:
    """Read the list; once more where it is cut short, since a run in progress writes it in place."""
    for wait in _WAITS_S:
        with filesystem.open_input_stream(snapshot) as stream:
            data = stream.read()
        try:
            return json.loads(data)
        except ValueError:
            time.sleep(wait)
    return json.loads(data)
