"""The manifest: the one file that makes a folder a source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from raypack.arguments import shown

FORMAT = "raypack-source"
VERSION = 1
MANIFEST_FILE = "manifest.json"
LENGTHS_FILE = "lengths.i32"
SUPERVISED_FILE = "supervised.i32"
STARTS_FILE = "starts.i32"
COLUMN_TYPE = "large_list<int32>"

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One shard, an Arrow IPC file of one record batch.

    Attributes:
        file: Name of the file in the source's folder.
        bytes: Exact size of the file.
        examples: Number of rows.
        tokens: Number of tokens of all its rows.
        digest: SHA-256 (hex) of its tokens, then of its labels, as little-endian int32.
    """

    file: str
    bytes: int
    examples: int
    tokens: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry:
    """A part of an original file that is read at once: a row group of Parquet, a record batch of Arrow IPC.

    Attributes:
        original: The place of its file among the originals.
        part: What finds it there: the number of the row group or batch; in a stream its message's byte.
        examples: Number of examples in it.
        tokens: Number of tokens of these.
        values: Number of tokens of all its rows, those that no example holds among them.
        digest: SHA-256 (hex) of all its tokens, then of their labels, as little-endian int32.
    """

    original: int
    part: int
    examples: int
    tokens: int
    values: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalFile:
    """A file that an index points into.

    Attributes:
        uri: Its path or URI.
        kind: ``parquet``, ``ipc_file`` or ``ipc_stream``.
        bytes: Exact size of the file.
        modified: When it was last changed, in nanoseconds; None where its file system does not say.
    """

    uri: str
    kind: str
    bytes: int
    modified: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """Where an index finds its tokens.

    Attributes:
        originals: The files, in the order of the examples.
        column: The column of the tokens.
        labels_column: The column of the labels; None where there are none.
        starts: The table of each example's first token, counted in its segment.
    """

    originals: tuple[OriginalFile, ...]
    column: str
    labels_column: str | None
    starts: TableEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """One raw table, little-endian int32, one value an example.

    Attributes:
        file: Name of the file in the source's folder.
        bytes: Exact size of the file.
        digest: What `raypack.batching.lengths.lengths_digest` gives for its values (hex).
    """

    file: str
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extreme:
    """The shortest or the longest example.

    Attributes:
        length: Its length in tokens.
        index: The first example of that length.
    """

    length: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceManifest:
    """What a source holds and how it was made.

    Attributes:
        examples: Number of examples.
        tokens: Number of tokens of all examples.
        supervised_tokens: Number of label tokens; a document's first label does not count.
        has_labels: Whether there is a column ``labels``.
        shards: The shards, in the order of the examples; the segments of the originals in an index.
        lengths: The table of lengths in tokens.
        supervised: The table of label tokens per example.
        shortest: The first of the shortest examples; None where there are none.
        longest: The first of the longest examples; None where there are none.
        prepared: How the tokens were made (tokenizer, splitting); part of the fingerprint.
        counts: What the preparation read, wrote, split and dropped; not part of the fingerprint.
        index: Where the tokens lie, in an index of files that stay as they are; None in a store.
    """

    examples: int
    tokens: int
    supervised_tokens: int
    has_labels: bool
    shards: tuple[ShardEntry, ...] | tuple[SegmentEntry, ...]
    lengths: TableEntry
    supervised: TableEntry
    shortest: Extreme | None
    longest: Extreme | None
    prepared: Mapping[str, Scalar] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    index: IndexEntry | None = None

    def __post_init__(self) -> None:
        for name, kinds in (("prepared", (str, int, float, bool, type(None))), ("counts", (int,))):
            for key, value in getattr(self, name).items():
                if type(key) is not str or type(value) not in kinds:
                    raise TypeError(f"{name} must map str to plain values, got {key!r}: {shown(value)}")
        object.__setattr__(self, "prepared", MappingProxyType(dict(self.prepared)))
        object.__setattr__(self, "counts", MappingProxyType(dict(self.counts)))

    @property
    def entries(self) -> tuple[ShardEntry | TableEntry, ...]:
        """All files of the folder but the manifest, shards first."""
        shards = tuple(shard for shard in self.shards if isinstance(shard, ShardEntry))
        return (*shards, *self.tables)

    @property
    def tables(self) -> tuple[TableEntry, ...]:
        """The tables: lengths, label tokens and, in an index, first tokens."""
        return (self.lengths, self.supervised, *((self.index.starts,) if self.index is not None else ()))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the shards."""
        return ("input_ids", "labels") if self.has_labels else ("input_ids",)

    @property
    def schema(self) -> dict[str, str]:
        """Arrow type of each column."""
        return dict.fromkeys(self.columns, COLUMN_TYPE)

    @property
    def contents(self) -> str:
        """Digest (hex) of the shards' contents: their rows, tokens and digests in order."""
        lines = [f"{shard.examples} {shard.tokens} {shard.digest}" for shard in self.shards]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """Digest (hex) of contents, lengths, schema and how the source was prepared.

        Sizes of files are left out: the same rows written by another Arrow release are the same source.
        """
        record: dict[str, object] = {
            "version": VERSION,
            "schema": self.schema,
            "examples": self.examples,
            "tokens": self.tokens,
            "contents": self.contents,
            "lengths": self.lengths.digest,
            "supervised": self.supervised.digest,
            "prepared": dict(self.prepared),
        }
        if self.index is not None:
            # Names, sizes and dates of the originals are left out too: only what they hold counts.
            record["starts"] = self.index.starts.digest
        return digest_of(record)


def digest_of(record: Mapping[str, object]) -> str:
    """Return the SHA-256 (hex) of a JSON record, whatever the order of its keys."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
