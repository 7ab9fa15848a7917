"""What the commands on a checkpoint's state begin with: its loaders, and the source where it is reachable."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs

from raypack.errors import CheckpointError, SourceError
from raypack.report.locate import last_checkpoint, open_path
from raypack.source import ArrowSource, describe_change, open_source
from raypack.source.location import public
from raypack.train.checkpoint_reading import loader_names
from raypack.train.run_state import RunState

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint and the loaders whose state it holds."""

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


def find(run: Path) -> Found:
    """Find the last checkpoint of a run, or take a path that is a checkpoint.

    Raises:
        CheckpointError: ``run`` is neither.
    """
    filesystem, path = open_path(run)
    checkpoint = last_checkpoint(filesystem, path)
    return Found(filesystem, checkpoint, tuple(loader_names(filesystem, checkpoint)))


def reach(state: RunState, source: Path | None = None) -> tuple[ArrowSource | None, str]:
    """Open the source that a state was trained on.

    Args:
        state: The state.
        source: Where the source lies now; None is where the run found it.

    Returns:
        The source and an empty text, or None and why it cannot be read.
    """
    place = os.fspath(source) if source is not None else state.source_path
    try:
        opened = open_source(place)
        if opened.fingerprint == state.plan.source_id:
            return opened, ""
        return None, f"another source lies at {public(place)}: {describe_change(state.source, opened)}"
    except (SourceError, OSError, pa.ArrowException) as error:
        return None, f"not readable at {public(place)}: {' '.join(str(error).split())}"
