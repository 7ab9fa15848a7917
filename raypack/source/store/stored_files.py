"""The files of a store: shards in its own folder."""

from __future__ import annotations

from raypack.errors import SourceError
from raypack.source.manifest.record import ShardEntry, SourceManifest
from raypack.source.paths.location import Location
from raypack.source.store.files import SourceFiles
from raypack.source.store.shards import Shard, digest_of_columns, map_shard


class StoredFiles(SourceFiles):
    """Maps the shards of a store."""

    def __init__(self, folder: Location, manifest: SourceManifest) -> None:
        super().__init__(folder, manifest)
        self._shards = [shard for shard in manifest.shards if isinstance(shard, ShardEntry)]

    def shard(self, number: int) -> Shard:
        """Return a memory-mapped shard."""
        entry = self._shards[number]
        return self._map(self.local(entry, lambda copy: self._check(copy, entry)), entry)

    def name_of(self, number: int) -> str:
        """Return the name of a shard's file."""
        return self._shards[number].file

    def verify_shard(self, number: int) -> None:
        """Compare the digest of a shard with the manifest."""
        entry = self._shards[number]
        self._check(self.local(entry, lambda _: None), entry)

    def _map(self, path: str, entry: ShardEntry) -> Shard:
        return map_shard(path, entry, self.manifest.columns)

    def _check(self, path: str, entry: ShardEntry) -> None:
        shard = self._map(path, entry)
        if digest_of_columns(shard.input_ids, shard.labels) != entry.digest:
            raise SourceError(
                f"{entry.file} ({path}) holds other tokens than its manifest says; restore the source"
            )
