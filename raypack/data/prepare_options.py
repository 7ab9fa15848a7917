"""How documents become examples, and what is counted on the way."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from raypack.arguments import choice, integer, optional_integer, text
from raypack.data.tokenizers import TextTokenizer
from raypack.errors import PrepareError
from raypack.source.manifest import Scalar

OVERSIZE = ("error", "split", "truncate", "drop")
CHUNK_BYTES = 64 << 20
"""Bytes of input a task: a worker needs about ten times that of memory for byte tokens."""
_MAXIMUM_LENGTH = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """What a user chose.

    Attributes:
        text_field: The field of a JSON line that holds the text.
        max_length: Tokens of an example at the most; None for no limit.
        oversize: What happens to a longer document: one of `OVERSIZE`; all but ``error`` need a limit.
        chunk_bytes: Bytes of input that one task reads, about.
    """

    text_field: str = "text"
    max_length: int | None = None
    oversize: str = "error"
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        text("text_field", self.text_field, error=PrepareError)
        choice("oversize", self.oversize, OVERSIZE, error=PrepareError)
        limit = optional_integer(
            "max_length", self.max_length, minimum=1, maximum=_MAXIMUM_LENGTH, error=PrepareError
        )
        object.__setattr__(self, "max_length", limit)
        if limit is None and self.oversize != "error":
            raise PrepareError(
                f"oversize {self.oversize!r} needs max_length, the most tokens of an example; give it too"
            )
        chunk = integer("chunk_bytes", self.chunk_bytes, minimum=1, error=PrepareError)
        object.__setattr__(self, "chunk_bytes", chunk)

    def record(self, tokenizer: TextTokenizer) -> dict[str, Scalar]:
        """Return what the manifest says of how the tokens were made."""
        return {
            "tokenizer": tokenizer.kind,
            "tokenizer_digest": tokenizer.digest,
            "vocabulary": tokenizer.vocabulary,
            "special_tokens": "the tokenizer's own" if tokenizer.special_tokens else "none",
            "text_field": self.text_field,
            "max_length": self.max_length,
            "oversize": None if self.max_length is None else self.oversize,
        }


@dataclass(slots=True)
class PrepareCounts:
    """What happened to the documents.

    Attributes:
        bytes: Bytes of input.
        documents: Documents read, empty ones among them.
        empty: Documents without a token, left out.
        split: Documents cut into pieces because they were too long.
        pieces: Pieces that these gave.
        truncated: Documents cut short.
        dropped: Documents left out because they were too long.
        examples: Examples written.
        tokens: Tokens written.
    """

    bytes: int = 0
    documents: int = 0
    empty: int = 0
    split: int = 0
    pieces: int = 0
    truncated: int = 0
    dropped: int = 0
    examples: int = 0
    tokens: int = 0

    def add(self, other: PrepareCounts) -> None:
        """Add another's counts to these."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def to_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return dataclasses.asdict(self)
