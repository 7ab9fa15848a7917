"""Finds a checkpoint's loaders, and their source if it is reachable, for the commands on a state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs

from raypack.audit.recorded_source import Path, check_source, open_recorded
from raypack.batching.rank.state import TokenBatchState
from raypack.checkpoint.locate import last_checkpoint, open_path
from raypack.checkpoint.reading import StateFiles, loader_names, read_files
from raypack.checkpoint.run_state import RunState
from raypack.errors import CheckpointError, SamplerError, SourceError
from raypack.source import ArrowSource
from raypack.source.paths.location import public


@dataclass(frozen=True, slots=True)
class LocatedCheckpoint:
    """A checkpoint and the loaders whose state it holds."""

    run: Path
    """What the caller named."""
    filesystem: pafs.FileSystem
    path: str
    """The checkpoint's path on the file system."""
    names: tuple[str | None, ...]
    """Names of its loaders; None is a loader without a name."""

    def pick(self, name: str | None) -> str | None:
        """Return the loader to read: the one that is named, or the only one.

        Raises:
            CheckpointError: There are several and ``name`` is None.
        """
        if name is not None or None in self.names or not self.names:
            return name
        if len(self.names) > 1:
            raise CheckpointError(
                f"{self.path} holds the loaders {', '.join(map(repr, self.names))}; give the name of one"
            )
        return self.names[0]


def find(run: Path) -> LocatedCheckpoint:
    """Find the last checkpoint of a run, or take a path that is a checkpoint.

    Raises:
        CheckpointError: ``run`` is neither.
    """
    filesystem, path = open_path(run)
    checkpoint = last_checkpoint(filesystem, path)
    return LocatedCheckpoint(run, filesystem, checkpoint, tuple(loader_names(filesystem, checkpoint)))


@contextmanager
def named(found: LocatedCheckpoint) -> Iterator[None]:
    """Name the checkpoint where what it holds cannot be planned on its source.

    Raises:
        CheckpointError: In place of a `SamplerError`.
    """
    try:
        yield
    except SamplerError as error:
        raise CheckpointError(f"{found.path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Reached:
    """A loader's part of a checkpoint, and its source where that can be read."""

    state: RunState
    records: list[TokenBatchState] | None
    """Under the rank deal, the records of all ranks."""
    source: ArrowSource | None
    fault: str
    """Why the source cannot be read; empty where it can."""


def reach(found: LocatedCheckpoint, name: str | None, source: Path | None = None) -> Reached:
    """Read a loader's part of a checkpoint, and open the source that it was trained on.

    Args:
        found: The checkpoint.
        name: The loader's name.
        source: Where the source lies now; None is where the run found it, which is opened if it is a
            local path or in the store that the run is in.

    Raises:
        CheckpointError: A file is missing, damaged, stale or foreign, or contradicts the source.
    """
    files = read_files(found.filesystem, found.path, name)
    opened, fault = _open(files, found, source)
    state, records = files.records(len(opened) if opened else None)
    if opened is not None:
        try:
            check_source(state, opened)
        except SourceError as error:
            opened, fault = None, str(error)
    return Reached(state, records, opened, fault)


def _open(files: StateFiles, found: LocatedCheckpoint, source: Path | None) -> tuple[ArrowSource | None, str]:
    place = public(os.fspath(source) if source is not None else files.source_path)
    try:
        return open_recorded(files.source_path, found.run, source), ""
    except CheckpointError as error:
        return None, f"not opened: {error}"
    except (SourceError, OSError, pa.ArrowException) as error:
        return None, f"not readable at {place}: {' '.join(str(error).split())}"
