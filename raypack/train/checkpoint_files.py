"""The ``raypack/`` folder of a checkpoint: written by rank 0, trusted by nobody.

    raypack/manifest.json   nonce, step, world size, and the size and digest of every file beside it
    raypack/state.json      the run's state and ledger

A named loader's files lie in ``raypack/<name>/``. The nonce also ends the checkpoint's own name, so a
folder that was copied from another checkpoint is refused as stale.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from raypack.arguments import shown
from raypack.errors import CheckpointError
from raypack.train.ledger import exact_fields
from raypack.train.run_state import RunState, sealed, unsealed

FOLDER = "raypack"
MANIFEST = "manifest.json"
STATE = "state.json"
_FORMAT = "raypack checkpoint"
_FIELDS = ["format", "version", "nonce", "step", "world_size", "deal", "files"]
_LARGEST_FILE = 64 << 20
_OUR_NAME = re.compile(r"^step_\d{8,}_w\d+_a\d+_([0-9a-f]{12})$")


def checkpoint_name(state: RunState) -> str:
    """Return the name of a report's checkpoint folder: unique for the attempt and the report."""
    attempts = state.ledger.attempts
    attempt = attempts[-1].number if attempts else 0
    return f"step_{state.step:08d}_w{state.world_size}_a{attempt}_{state.nonce[:12]}"


def write_state(directory: Path, state: RunState, name: str | None = None) -> None:
    """Write the files of one loader into a checkpoint's local directory, manifest last."""
    folder = directory / FOLDER / name if name else directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    data = sealed(state.to_dict())
    (folder / STATE).write_bytes(data)
    manifest = {
        "format": _FORMAT,
        "version": 1,
        "nonce": state.nonce,
        "step": state.step,
        "world_size": state.world_size,
        "deal": "global",
        "files": {STATE: _entry(data)},
    }
    (folder / MANIFEST).write_bytes(sealed(manifest))


def _entry(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "digest": hashlib.blake2b(data, digest_size=16).hexdigest()}


def read_state(filesystem: pafs.FileSystem, path: str, name: str | None = None) -> RunState:
    """Read and check the files of one loader; nothing else of the checkpoint is touched.

    Args:
        filesystem: The checkpoint's pyarrow filesystem.
        path: The checkpoint's path on it.
        name: The loader's name, where it has one.

    Raises:
        CheckpointError: A file is missing, extra, cut short, edited, stale or foreign; it is named.
    """
    folder = "/".join([path.rstrip("/"), FOLDER, *([name] if name else [])])
    present = _present(filesystem, folder, path, name)
    if MANIFEST not in present:
        raise CheckpointError(f"{folder}/{MANIFEST} is missing: {_others(filesystem, path, name)}")
    manifest_file = f"{folder}/{MANIFEST}"
    manifest = _named(manifest_file, lambda: _manifest(_read(filesystem, manifest_file)))
    _check_name(path, manifest, manifest_file)
    expected = {MANIFEST, *manifest["files"]}
    for file in sorted(expected - set(present)):
        raise CheckpointError(f"{folder}/{file} is missing, but {MANIFEST} lists it")
    for file in sorted(set(present) - expected):
        raise CheckpointError(f"{folder}/{file} is not in {MANIFEST}: it is no file of this checkpoint")
    state_file = f"{folder}/{STATE}"
    data = _read(filesystem, state_file)
    return _named(state_file, lambda: _state(data, manifest))


def _present(filesystem: pafs.FileSystem, folder: str, path: str, name: str | None) -> list[str]:
    infos = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    if not infos:
        raise CheckpointError(f"{folder} is missing: {_others(filesystem, path, name)}")
    return [info.base_name for info in infos if info.type == pafs.FileType.File]


def _others(filesystem: pafs.FileSystem, path: str, name: str | None) -> str:
    """Say what there is in a checkpoint in place of the loader that was asked for."""
    infos = filesystem.get_file_info(pafs.FileSelector(f"{path.rstrip('/')}/{FOLDER}", allow_not_found=True))
    names = sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)
    if names and name not in names:
        return f"the checkpoint holds the loaders {', '.join(map(repr, names))}; give the name of one"
    if any(info.base_name == MANIFEST for info in infos):
        return "the checkpoint holds a loader without a name; give none"
    if infos:
        return "the checkpoint is incomplete"
    return (
        f"the checkpoint {path} holds no state of raypack; report with raypack.train.report, or begin under "
        "another run name"
    )


def _named(file: str, check: Any) -> Any:
    try:
        return check()
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _read(filesystem: pafs.FileSystem, file: str) -> bytes:
    size = filesystem.get_file_info(file).size
    if size is None or size > _LARGEST_FILE:
        raise CheckpointError(f"{file} must be at most {_LARGEST_FILE} bytes, got {size}")
    with filesystem.open_input_stream(file) as stream:
        return bytes(stream.read())


def _manifest(data: bytes) -> dict[str, Any]:
    manifest = exact_fields(unsealed(data), _FIELDS, _FORMAT)
    if manifest["format"] != _FORMAT or manifest["version"] != 1 or manifest["deal"] != "global":
        raise CheckpointError(f"must be a {_FORMAT!r} of version 1, got {shown(manifest)}")
    if not isinstance(manifest["nonce"], str) or not isinstance(manifest["files"], dict):
        raise CheckpointError(f"must hold a nonce and a list of files, got {shown(manifest)}")
    if set(manifest["files"]) != {STATE}:
        raise CheckpointError(f"must list {STATE} alone, got {shown(sorted(manifest['files']))}")
    return manifest


def _check_name(path: str, manifest: dict[str, Any], file: str) -> None:
    ours = _OUR_NAME.match(path.rstrip("/").rsplit("/", 1)[-1])
    if ours and not manifest["nonce"].startswith(ours[1]):
        raise CheckpointError(
            f"{file} is stale: it belongs to the report {manifest['nonce'][:12]} (step "
            f"{shown(manifest['step'])}), the checkpoint's name to {ours[1]}"
        )


def _state(data: bytes, manifest: dict[str, Any]) -> RunState:
    entry = exact_fields(manifest["files"][STATE], ["bytes", "digest"], "manifest entry")
    if len(data) != entry["bytes"]:
        raise CheckpointError(f"must have {shown(entry['bytes'])} bytes, has {len(data)}: cut short or stale")
    state = RunState.from_dict(unsealed(data))
    if state.nonce != manifest["nonce"]:
        raise CheckpointError(
            f"is stale: it belongs to the report {state.nonce[:12]} at step {state.step}, "
            f"the manifest to {manifest['nonce'][:12]} at step {shown(manifest['step'])}"
        )
    if _entry(data) != entry:
        raise CheckpointError("is not the file that the manifest lists: its digest differs")
    return state
