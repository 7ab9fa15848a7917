"""What happened to the rows on their way into a source."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


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
        separated: Prompts and completions whose tokens merge, so that each was tokenised on its own.
        unsupervised: Examples left out because no token of them is trained on.
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
    separated: int = 0
    unsupervised: int = 0
    examples: int = 0
    tokens: int = 0

    def add(self, other: PrepareCounts) -> None:
        """Add another's counts to these."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def to_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return dataclasses.asdict(self)
