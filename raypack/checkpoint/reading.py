"""Reads a loader's files from a checkpoint and names whatever is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow.fs as pafs

from raypack.arguments import integer, shown, text
from raypack.batching.rank.state import TokenBatchState
from raypack.checkpoint.files import (
    FOLDER,
    MANIFEST,
    MANIFEST_FORMAT,
    RANK_FORMAT,
    STATE,
    entry_of,
    rank_file,
    report_id_in_name,
)
from raypack.checkpoint.ledger import exact_fields
from raypack.checkpoint.rank_bounds import check_claims, most_positions
from raypack.checkpoint.run_state import RunState, check_kind, checked_path
from raypack.checkpoint.sealing import unsealed
from raypack.choices import DEALS
from raypack.errors import CheckpointError

_MANIFEST_FIELDS = ["format", "version", "report_id", "step", "world_size", "deal", "files"]
_RANK_FIELDS = ["format", "version", "report_id", "rank", "world_size", "state"]
_LARGEST_FILE = 64 << 20
_MOST_RANKS = 1 << 20
_READERS = 16
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class StateFiles:
    """A loader's files as read: complete and of one report, but their contents are not validated yet."""

    file: str
    """Path of the run's state, for messages."""
    values: dict[str, Any]
    """What it holds."""
    ranks: tuple[tuple[str, dict[str, Any]], ...] | None
    """Under the rank deal, path and contents of each rank's file, by rank."""

    @property
    def source_path(self) -> str:
        """Path of the run's source, according to the checkpoint."""
        return _named(self.file, lambda: checked_path(self.values["source_path"]))

    def state(self, examples: int | None = None) -> RunState:
        """Return the run's state.

        Args:
            examples: Examples of the source that is open, which bound what is allocated; None where
                none is.

        Raises:
            CheckpointError: A file says what no run can have written; it is named.
        """
        return self.records(examples)[0]

    def records(self, examples: int | None = None) -> tuple[RunState, list[TokenBatchState] | None]:
        """Return what `state` does and, under the rank deal, the records of all ranks too."""
        states = None
        if self.ranks is not None:
            records = [values["state"] for _, values in self.ranks]
            _named(self.file, lambda: check_claims(records, most_positions(examples)))
            size = len(self.ranks)
            states = [
                _named(file, partial(_rank_state, values, rank, size))
                for rank, (file, values) in enumerate(self.ranks)
            ]
        return _named(self.file, lambda: RunState.from_dict(self.values, states, examples)), states


def read_state(
    filesystem: pafs.FileSystem, path: str, name: str | None = None, *, examples: int | None = None
) -> RunState:
    """Read and check the files of one loader; nothing else of the checkpoint is touched.

    Args:
        filesystem: The checkpoint's pyarrow filesystem.
        path: The checkpoint's path on it.
        name: The loader's name, where it has one.
        examples: Examples of the source that is open, which bound what is allocated; None where none is.

    Raises:
        CheckpointError: A file is missing, extra, cut short, edited, stale or foreign; it is named.
    """
    return read_files(filesystem, path, name).state(examples)


def read_files(filesystem: pafs.FileSystem, path: str, name: str | None = None) -> StateFiles:
    """Read the files of one loader, and check that they are complete and of one report.

    What they hold is checked by `StateFiles.state`, once the source is open if it can be. See
    `read_state`.
    """
    folder = folder_of(path, name)
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

    def load(file: str, check: Callable[[dict[str, Any]], _Value]) -> _Value:
        data = _read(filesystem, f"{folder}/{file}")
        return _named(f"{folder}/{file}", lambda: check(_values(data, manifest, file)))

    def load_rank(rank: int) -> tuple[str, dict[str, Any]]:
        file = rank_file(rank)
        return f"{folder}/{file}", load(file, lambda values: exact_fields(values, _RANK_FIELDS, RANK_FORMAT))

    values = load(STATE, lambda values: _kind(values, manifest))
    ranks = None
    if manifest["deal"] == "rank":
        with ThreadPoolExecutor(_READERS) as pool:  # small remote files: read in parallel
            ranks = tuple(pool.map(load_rank, range(manifest["world_size"])))
    return StateFiles(f"{folder}/{STATE}", values, ranks)


def folder_of(path: str, name: str | None) -> str:
    """Return the folder of a loader's files in a checkpoint.

    Raises:
        CheckpointError: The name is no identifier, as a loader's is: it would lead elsewhere.
    """
    if name is not None and not text("name", name, error=CheckpointError).isidentifier():
        raise CheckpointError(f"the loader's name must be a Python identifier, got {shown(name)}")
    return "/".join([path.rstrip("/"), FOLDER, *([name] if name else [])])


def loader_names(filesystem: pafs.FileSystem, path: str) -> list[str | None]:
    """Return the names of a checkpoint's loaders; a loader without a name is None."""
    infos = filesystem.get_file_info(pafs.FileSelector(f"{path.rstrip('/')}/{FOLDER}", allow_not_found=True))
    named = sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)
    unnamed = any(info.type == pafs.FileType.File for info in infos)
    return [*([None] if unnamed else []), *named]


def _present(filesystem: pafs.FileSystem, folder: str, path: str, name: str | None) -> list[str]:
    infos = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    if not infos:
        raise CheckpointError(f"{folder} is missing: {_others(filesystem, path, name)}")
    return [info.base_name for info in infos if info.type == pafs.FileType.File]


def _others(filesystem: pafs.FileSystem, path: str, name: str | None) -> str:
    """Say which loaders a checkpoint holds instead of the requested one."""
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


def _named(file: str, check: Callable[[], _Value]) -> _Value:
    try:
        return check()
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _read(filesystem: pafs.FileSystem, file: str) -> bytes:
    with filesystem.open_input_stream(file) as stream:
        data = bytes(stream.read(_LARGEST_FILE + 1))
    if len(data) > _LARGEST_FILE:
        raise CheckpointError(f"{file} must be at most {_LARGEST_FILE} bytes, has more")
    return data


def _manifest(data: bytes) -> dict[str, Any]:
    manifest = exact_fields(unsealed(data), _MANIFEST_FIELDS, MANIFEST_FORMAT)
    if manifest["format"] != MANIFEST_FORMAT or manifest["version"] != 1 or manifest["deal"] not in DEALS:
        raise CheckpointError(f"must be a {MANIFEST_FORMAT!r} of version 1, got {shown(manifest)}")
    if not isinstance(manifest["report_id"], str) or not isinstance(manifest["files"], dict):
        raise CheckpointError(f"must hold a report ID and a list of files, got {shown(manifest)}")
    try:
        world_size = integer("world_size", manifest["world_size"], minimum=1, maximum=_MOST_RANKS)
    except (TypeError, ValueError) as error:
        raise CheckpointError(str(error)) from error
    ranks = world_size if manifest["deal"] == "rank" else 0
    right = len(manifest["files"]) == 1 + ranks  # before names of so many are made
    if not right or set(manifest["files"]) != {STATE, *map(rank_file, range(ranks))}:
        raise CheckpointError(
            f"must list {STATE} and, under the rank deal, a file of each of its {world_size} ranks; got "
            f"{shown(sorted(map(str, manifest['files'])))}"
        )
    return manifest


def _check_name(path: str, manifest: dict[str, Any], file: str) -> None:
    ours = report_id_in_name(path)
    if ours and not manifest["report_id"].startswith(ours):
        raise CheckpointError(
            f"{file} is stale: it belongs to the report {manifest['report_id'][:12]} (step "
            f"{shown(manifest['step'])}), the checkpoint's name to {ours}"
        )


def _values(data: bytes, manifest: dict[str, Any], file: str) -> dict[str, Any]:
    """Return the values of a file that the manifest lists, once they belong to the same report."""
    entry = exact_fields(manifest["files"][file], ["bytes", "digest"], "manifest entry")
    if len(data) != entry["bytes"]:
        raise CheckpointError(f"must have {shown(entry['bytes'])} bytes, has {len(data)}: cut short or stale")
    values = unsealed(data)
    if values.get("report_id") != manifest["report_id"]:
        raise CheckpointError(
            f"is stale: it belongs to the report {shown(values.get('report_id'))}, the manifest to "
            f"{manifest['report_id']} at step {shown(manifest['step'])}"
        )
    if entry_of(data) != entry:
        raise CheckpointError("is not the file that the manifest lists: its digest differs")
    return values


def _rank_state(record: dict[str, Any], rank: int, world_size: int) -> TokenBatchState:
    expected = {"format": RANK_FORMAT, "version": 1, "rank": rank, "world_size": world_size}
    for field, value in expected.items():
        if record[field] != value:
            raise CheckpointError(f"{field} must be {value!r}, got {shown(record[field])}")
    try:
        state = TokenBatchState.from_dict(record["state"])
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if (state.sampler.rank, state.sampler.world_size) != (rank, world_size):
        raise CheckpointError(f"holds the sampler of rank {state.sampler.rank} of {state.sampler.world_size}")
    return state


def _kind(values: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    record = check_kind(values)
    if record["deal"] != manifest["deal"] or record["world_size"] != manifest["world_size"]:
        raise CheckpointError("deal and world_size must be those of the manifest")
    return record
