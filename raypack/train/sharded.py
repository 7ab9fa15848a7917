"""Sharded models in a report: what PyTorch's distributed checkpoint writes, one file a rank.

Each rank writes its shards into the directory that ``save`` gave it, and rank 0 the index of them all;
their names differ by rank, so a report joins them into one checkpoint. Reading goes through the
checkpoint's own filesystem: a rank reads the parts that it needs at its world size, and downloads nothing
else.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import torch.distributed.checkpoint as dcp
from ray.train import Checkpoint
from torch.distributed.checkpoint.filesystem import FileSystem

from raypack.arguments import shown, text
from raypack.checkpoint.files import FOLDER
from raypack.errors import CheckpointError

INDEX = ".metadata"
"""PyTorch's name of the file that says where each tensor's shards are."""


def save_sharded(state: dict[str, Any], directory: str | os.PathLike[str], *, name: str = "model") -> None:
    """Write this rank's shards of a state; call it in ``save``, on every rank.

    Args:
        state: Whatever ``torch.distributed.checkpoint`` saves, such as the state dicts that
            ``torch.distributed.checkpoint.state_dict.get_state_dict`` gives.
        directory: What ``save`` was called with.
        name: The folder in the checkpoint.

    Raises:
        CheckpointError: The name is none of a folder.
    """
    dcp.save(state, checkpoint_id=str(Path(directory) / _folder(name)))


def load_sharded(checkpoint: Checkpoint, state: dict[str, Any], *, name: str = "model") -> None:
    """Fill a state with what was saved, at any world size; call it on every rank.

    Args:
        checkpoint: As ``ray.train.get_checkpoint()`` gives it.
        state: Of the present model and optimizer, as for `save_sharded`; its tensors are filled in
            place, its other values replaced. Hand it back to
            ``torch.distributed.checkpoint.state_dict.set_state_dict`` then.
        name: The folder in the checkpoint.

    Raises:
        CheckpointError: The checkpoint holds no such folder, or one that was not saved to its end.
    """
    folder = f"{checkpoint.path.rstrip('/')}/{_folder(name)}"
    index = checkpoint.filesystem.get_file_info(f"{folder}/{INDEX}")
    if index.type != pafs.FileType.File:
        raise CheckpointError(
            f"{folder}/{INDEX} is missing: the checkpoint holds no sharded {name!r}; save it with "
            f"save_sharded(state, directory, name={name!r}) on every rank"
        )
    reader = dcp.FileSystemReader(folder)
    reader.fs = _CheckpointFiles(checkpoint.filesystem)
    dcp.load(state, storage_reader=reader)


def _folder(name: str) -> str:
    if name == FOLDER or not text("name", name, error=CheckpointError).isidentifier():
        raise CheckpointError(f"name must be a Python identifier other than {FOLDER!r}, got {shown(name)}")
    return name


class _CheckpointFiles(FileSystem):
    """A checkpoint's own filesystem, as far as a reader asks for it."""

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        self._filesystem = filesystem

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file to read."""
        with self._filesystem.open_input_file(os.fspath(path)) as file, io.BufferedReader(file) as stream:
            yield stream
