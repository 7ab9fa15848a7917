"""The ``raypack/`` folder of a checkpoint: written once, validated whenever it is read.

    raypack/state.json        the run's state and ledger
    raypack/rank_00003.json   under the rank deal, the state of data rank 3; one file per data rank
    raypack/manifest.json     report ID, step, world size, and the size and digest of every file beside it

A named loader's files are in ``raypack/<name>/``. Every file contains the report ID, and the checkpoint's
name ends with it, so a file or folder of another checkpoint is refused as stale.
"""

from __future__ import annotations

import errno
import hashlib
import re
from pathlib import Path
from typing import Any

from raypack.checkpoint.sealing import sealed
from raypack.errors import CheckpointError

FOLDER = "raypack"
MANIFEST = "manifest.json"
STATE = "state.json"
MANIFEST_FORMAT = "raypack checkpoint"
RANK_FORMAT = "raypack rank state"
_OUR_NAME = re.compile(r"^step_\d{8,}_w\d+_a\d+_([0-9a-f]{12})$")

Entry = dict[str, Any]
"""Size and digest of a file, as the manifest lists it: ``{"bytes": int, "digest": hex}``."""


def rank_file(rank: int) -> str:
    """Return the name of a data rank's own file."""
    return f"rank_{rank:05d}.json"


def checkpoint_name(values: dict[str, Any]) -> str:
    """Return the name of a report's checkpoint folder: unique for the attempt and the report.

    Args:
        values: The JSON values of the run's state.
    """
    attempts = values["ledger"]["attempts"]
    attempt = attempts[-1]["number"] if attempts else 0
    return f"step_{values['step']:08d}_w{values['world_size']}_a{attempt}_{values['report_id'][:12]}"


def report_id_in_name(path: str) -> str | None:
    """Return the report ID's beginning in a checkpoint's name, or None where raypack did not name it."""
    ours = _OUR_NAME.match(path.rstrip("/").rsplit("/", 1)[-1])
    return ours[1] if ours else None


def loader_folder(directory: Path, name: str | None) -> Path:
    """Return where a loader's files lie in a checkpoint's local directory."""
    return directory / FOLDER / name if name else directory / FOLDER


def write_state(folder: Path, values: dict[str, Any]) -> dict[str, Entry]:
    """Write the run's state into a loader's folder; return its manifest entry."""
    return _write(folder, STATE, values)


def write_rank(
    folder: Path, own: dict[str, Any], *, report_id: str, rank: int, world_size: int
) -> dict[str, Entry]:
    """Write what is a data rank's own into a loader's folder; return its manifest entry."""
    values = {
        "format": RANK_FORMAT,
        "version": 1,
        "report_id": report_id,
        "rank": rank,
        "world_size": world_size,
        "state": own,
    }
    return _write(folder, rank_file(rank), values)


def write_manifest(folder: Path, values: dict[str, Any], files: dict[str, Entry]) -> None:
    """Write the manifest, last of all: it lists the files of every rank.

    Args:
        folder: The loader's folder in rank 0's directory.
        values: The JSON values of the run's state.
        files: Entries of all files of the loader, from all ranks.
    """
    manifest = {
        "format": MANIFEST_FORMAT,
        "version": 1,
        **{name: values[name] for name in ("report_id", "step", "world_size", "deal")},
        "files": files,
    }
    _write(folder, MANIFEST, manifest)


def _write(folder: Path, name: str, values: dict[str, Any]) -> dict[str, Entry]:
    data = sealed(values)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    except OSError as error:
        raise CheckpointError(
            f"{folder / name} cannot be written ({error.strerror}): {remedy(error, f'for {folder}')}"
        ) from error
    return {name: entry_of(data)}


def entry_of(data: bytes) -> Entry:
    """Return a file's manifest entry."""
    return {"bytes": len(data), "digest": hashlib.blake2b(data, digest_size=16).hexdigest()}


def remedy(error: Exception, where: str) -> str:
    """Return what a user can do about a file that cannot be written.

    Args:
        error: What was raised.
        where: The place, as it goes on after "free space" or "permission to write".
    """
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"free space {where}, or name a larger place"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"get permission to write {where}, or name another place"
    return f"see to the storage {where}, then start the run again under its name"
