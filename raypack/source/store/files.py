"""The files of a source on this machine: read where they lie, or from the node-local cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from pyarrow.fs import FileSelector, FileType

from raypack.errors import SourceError
from raypack.source.manifest.codec import parse_manifest
from raypack.source.manifest.record import MANIFEST_FILE, ShardEntry, SourceManifest, TableEntry
from raypack.source.paths.location import Location
from raypack.source.store.node_cache import NodeCache
from raypack.source.store.shards import Shard
from raypack.source.store.tables import digest_of_table, map_table


def read_manifest(folder: Location) -> SourceManifest:
    """Read and check a source's manifest and the sizes of the files that it names.

    Raises:
        SourceError: there is no finished source, the manifest is damaged, or a file is missing or has
            another size; the message names the first such file.
    """
    sizes = _list_sizes(folder)
    if MANIFEST_FILE not in sizes:
        if any(name.endswith(".arrow") for name in sizes):
            raise SourceError(
                f"{folder.label} has shards but no {MANIFEST_FILE}: its writing did not end; "
                "wait for it, or remove the folder and prepare it again"
            )
        raise SourceError(
            f"{folder.label} is a folder without {MANIFEST_FILE}, so no source; prepare one first"
        )
    with folder.filesystem.open_input_stream(folder.child(MANIFEST_FILE)) as stream:
        manifest = parse_manifest(stream.read(), f"{folder.label}/{MANIFEST_FILE}")
    for entry in manifest.entries:
        _check_size(folder, entry, sizes.get(entry.file))
    return manifest


def _list_sizes(folder: Location) -> dict[str, int]:
    kind = folder.kind()
    if kind == FileType.NotFound:
        raise SourceError(f"{folder.label} does not exist; a source is a folder made by raypack prepare")
    if kind != FileType.Directory:
        raise SourceError(f"{folder.label} is a file; a source is a folder made by raypack prepare")
    listing = folder.filesystem.get_file_info(FileSelector(folder.path))
    return {info.base_name: info.size for info in listing if info.type == FileType.File}


def _check_size(folder: Location, entry: ShardEntry | TableEntry, size: int | None) -> None:
    if size is None:
        raise SourceError(f"{folder.label}/{entry.file} is missing; restore the source")
    if size != entry.bytes:
        raise SourceError(
            f"{folder.label}/{entry.file} must have {entry.bytes} bytes, got {size}; restore the source"
        )


class SourceFiles(ABC):
    """The files of one source: tables in its folder, and tokens there or elsewhere.

    Attributes:
        folder: Where the source lies.
        manifest: Its manifest.
        fingerprint: The manifest's fingerprint, computed once.
    """

    def __init__(self, folder: Location, manifest: SourceManifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.fingerprint = manifest.fingerprint
        self._cache = None if folder.is_local else NodeCache(folder, self.fingerprint)

    @abstractmethod
    def shard(self, number: int) -> Shard:
        """Return a shard, checked against the manifest."""

    @abstractmethod
    def name_of(self, number: int) -> str:
        """Return a shard as messages name it."""

    @abstractmethod
    def verify_shard(self, number: int) -> None:
        """Compare the digest of a shard with the manifest; raise SourceError where it differs."""

    def table(self, entry: TableEntry) -> NDArray[np.int32]:
        """Return a memory-mapped table, int32 (n,)."""
        path = self.local(entry, lambda copy: _check_table(copy, entry))
        table = map_table(path)
        if len(table) != self.manifest.examples:
            raise SourceError(
                f"{path} must have {entry.bytes} bytes, got {4 * len(table)}; restore the source"
            )
        return table

    def verify(self) -> None:
        """Compare the digest of every file with the manifest.

        Raises:
            SourceError: naming the first file that differs.
        """
        for number in range(len(self.manifest.shards)):
            self.verify_shard(number)
        for table in self.manifest.tables:
            _check_table(self.local(table, lambda _: None), table)

    def local(self, entry: ShardEntry | TableEntry, check: Callable[[str], None]) -> str:
        """Return the path of a file of the folder on this machine; ``check`` is called for a new copy."""
        if self._cache is None:
            return self.folder.child(entry.file)
        return self._cache.fetch(entry.file, entry.bytes, check)


def _check_table(path: str, entry: TableEntry) -> None:
    if digest_of_table(path) != entry.digest:
        raise SourceError(
            f"{entry.file} ({path}) holds other values than its manifest says; restore the source"
        )
