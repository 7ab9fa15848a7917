"""Find the last checkpoint of a run, offline: no Ray is started."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import pyarrow.fs as pafs

from raypack.arguments import shown
from raypack.checkpoint.files import FOLDER
from raypack.checkpoint.untrusted_json import parse
from raypack.errors import CheckpointError, SourceError
from raypack.source.paths.location import locate

_SNAPSHOT = "checkpoint_manager_snapshot.json"
_LARGEST = 64 << 20
_MOST_VALUES = 1 << 23
"""Values of Ray Train's list, which holds the metrics of every checkpoint that is kept."""
_LEADS_AWAY = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_WAITS_S = (0.1, 0.3, 0.0)


class NoRunError(CheckpointError):
    """No run lies where one was looked for, or none that has a checkpoint."""


def open_path(path: str | os.PathLike[str]) -> tuple[pafs.FileSystem, str]:
    """Return the pyarrow filesystem of a path or a URI that Arrow or fsspec knows, and the path on it.

    Raises:
        NoRunError: ``path`` is empty, or a URI of no known file system.
    """
    text = os.fspath(path)
    if not text or "\0" in text:
        raise NoRunError(f"the run must be a path or a URI, got {shown(text)}")
    try:
        place = locate(text)
    except SourceError as error:
        raise NoRunError(f"the run must be a path or a URI: {error}") from error
    return place.filesystem, place.path.rstrip("/") or "/"


def last_checkpoint(filesystem: pafs.FileSystem, path: str) -> str:
    """Return the path of the last registered checkpoint of a run, or ``path`` if it is a checkpoint.

    Only what Ray Train registered counts: a folder of an upload that was cut short is not in its list.

    Raises:
        NoRunError: ``path`` is neither a run nor a checkpoint, or no checkpoint was registered.
        CheckpointError: Ray Train's list of checkpoints is damaged, or names what is no checkpoint of it.
    """
    if filesystem.get_file_info(f"{path}/{FOLDER}").type == pafs.FileType.Directory:
        return path
    snapshot = f"{path}/{_SNAPSHOT}"
    if filesystem.get_file_info(snapshot).type != pafs.FileType.File:
        raise NoRunError(
            f"{path} must be the directory of a run (it has no {_SNAPSHOT}) or of a checkpoint (it has no "
            f"{FOLDER}/ folder): give <storage_path>/<run name>"
        )
    try:
        latest = _content(filesystem, snapshot)["latest_checkpoint_result"]
        name = None if latest is None else latest["checkpoint_dir_name"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{snapshot} is not Ray Train's list of checkpoints: {error!r}") from error
    if name is None:
        raise NoRunError(f"{path} has no registered checkpoint yet: the run reported none")
    if not isinstance(name, str) or name in ("", ".", "..") or _LEADS_AWAY.search(name):
        raise CheckpointError(
            f"{snapshot} must name a folder beside it as the last checkpoint, got {shown(name)}"
        )
    return f"{path}/{name}"


def _content(filesystem: pafs.FileSystem, snapshot: str) -> Any:
    """Read the list; once more where it is cut short, since a run in progress writes it in place."""
    for wait in _WAITS_S:
        with filesystem.open_input_stream(snapshot) as stream:
            data = bytes(stream.read(_LARGEST + 1))
        if len(data) > _LARGEST:
            raise CheckpointError(f"must be at most {_LARGEST} bytes, has more")
        try:
            return parse(data, most_values=_MOST_VALUES, is_state=False)
        except CheckpointError:
            time.sleep(wait)
    return parse(data, most_values=_MOST_VALUES, is_state=False)
