"""A new folder that exists whole or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow.fs import FileType

from raypack.errors import SourceError
from raypack.source.paths.job_folder import refuse_job_folder
from raypack.source.paths.location import Location, locate

_REMOVALS = 10
_PAUSE_S = 0.2


def refuse_existing(folder: Location) -> None:
    """Raise SourceError where something already lies at ``folder``, or a job's end would delete it."""
    refuse_job_folder(folder.uri)
    if folder.kind() != FileType.NotFound:
        raise SourceError(
            f"target {folder.label} exists already and is never overwritten; name another, or remove it"
        )


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Location]:
    """Create a folder for the time of a block; a failure in the block removes it again.

    Args:
        path: The folder to make, as a path or URI; nothing may lie there.

    Raises:
        SourceError: something lies there already; it is not touched.
    """
    folder = locate(path)
    refuse_existing(folder)
    parents = _create(folder)
    try:
        yield folder
    except BaseException:
        _remove(folder, parents)
        raise


def _create(folder: Location) -> list[str]:
    """Make the folder and return the parents made for it, the deepest first."""
    if not folder.is_local:
        # Stores without folders have nothing to create; two writers at once are told apart by no one there.
        folder.filesystem.create_dir(folder.path, recursive=True)
        return []
    parents = []
    parent = os.path.dirname(folder.path)
    while not os.path.lexists(parent):
        parents.append(parent)
        parent = os.path.dirname(parent)
    try:
        if parents:
            os.makedirs(parents[0], exist_ok=True)
        # Exclusive: of two writers one gets the folder, the other is refused.
        os.mkdir(folder.path)
    except FileExistsError as error:
        raise SourceError(
            f"target {folder.label} was made by another writer just now; name another"
        ) from error
    except NotADirectoryError as error:
        raise SourceError(f"target {folder.label} lies below a file; name another") from error
    return parents


def _remove(folder: Location, parents: list[str]) -> None:
    for left in reversed(range(_REMOVALS)):
        try:
            if folder.kind() != FileType.NotFound:
                folder.filesystem.delete_dir(folder.path)
            break
        except OSError:
            # A task of another process may have added a file since the folder was listed.
            if not left:
                raise
            time.sleep(_PAUSE_S)
    for parent in parents:
        if os.listdir(parent):
            return
        os.rmdir(parent)
