"""The checkpoints that Ray Train has registered for a run, read from its list in the run's storage."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs

from raypack.arguments import shown
from raypack.errors import CheckpointError

SNAPSHOT = "checkpoint_manager_snapshot.json"


@dataclass(frozen=True, slots=True)
class Registered:
    """One checkpoint of a run."""

    path: str
    """Its folder, on the run's file system."""
    metrics: dict[str, Any]
    """What rank 0 reported with it."""


def registered(filesystem: pafs.FileSystem, run: str) -> list[Registered]:
    """Return a run's registered checkpoints, the last report's first; none where Ray Train has no list.

    Args:
        filesystem: The run's pyarrow filesystem.
        run: The run's folder on it, ``<storage_path>/<run name>``.

    Raises:
        CheckpointError: The list is damaged.
    """
    snapshot = f"{run}/{SNAPSHOT}"
    if filesystem.get_file_info(snapshot).type != pafs.FileType.File:
        return []
    with filesystem.open_input_stream(snapshot) as stream:
        data = stream.read()
    try:
        values = json.loads(data)
        results = zip(values["checkpoint_report_indices"], values["checkpoint_results"], strict=True)
        newest_first = sorted(results, key=lambda result: int(result[0]), reverse=True)
        return [_parsed(run, values) for _, values in newest_first]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{snapshot} is not Ray Train's list of checkpoints: {error!r}") from error


def _parsed(run: str, values: dict[str, Any]) -> Registered:
    name, metrics = values["checkpoint_dir_name"], values["metrics"]
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise ValueError(f"checkpoint_dir_name must be the name of a folder, got {shown(name)}")
    return Registered(f"{run}/{name}", dict(metrics))
