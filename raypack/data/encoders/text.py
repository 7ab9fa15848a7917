"""Rows to examples: what every kind of row has in common, and plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raypack.data.encoders.examples import Examples
from raypack.data.formats.row import Row
from raypack.data.ingest.counts import PrepareCounts
from raypack.errors import PrepareError
from raypack.source.manifest.record import Scalar
from raypack.tokenizers import Encoded, TextTokenizer
from raypack.tokenizers.special_tokens import SpecialTokens, surround


class RowEncoder(Protocol):
    """Turns rows into examples; made by the driver, sent to each node once.

    Attributes:
        record: What the manifest says of it.
        has_labels: Whether its examples have labels.
    """

    record: dict[str, Scalar]
    has_labels: bool

    def encode(self, rows: Sequence[Row], counts: PrepareCounts) -> Examples:
        """Return the example of each row.

        Raises:
            RowFault: a row cannot be encoded.
        """
        ...


def examples_of(rows: Sequence[Row], encoded: Encoded, labels: NDArray[np.int32] | None = None) -> Examples:
    """Return the examples of rows."""
    return Examples(encoded[0], encoded[1], labels, lambda row, reason: rows[row].fault(reason))


def tokenizer_record(tokenizer: TextTokenizer, special_tokens: str) -> dict[str, Scalar]:
    """Return what the manifest says of a tokenizer."""
    return {
        "tokenizer": tokenizer.kind,
        "tokenizer_digest": tokenizer.digest,
        "vocabulary": tokenizer.vocabulary,
        "special_tokens": special_tokens,
    }


def encode_checked(
    tokenizer: TextTokenizer, texts: Sequence[str], rows: Sequence[Row], *, plain: bool
) -> Encoded:
    """Encode texts, and check what a tokenizer of the caller's own gives.

    Args:
        tokenizer: Encodes.
        texts: The texts.
        rows: The rows that they come from; the first is named where the tokenizer fails.
        plain: Whether the tokenizer leaves its own special tokens out.

    Raises:
        RowFault: the tokenizer failed.
    """
    try:
        lengths, ids = tokenizer.encode_plain(texts) if plain else tokenizer.encode(texts)
        _check(lengths, ids, len(texts))
        return lengths, ids
    except PrepareError:
        raise
    except Exception as error:  # tokenizers raise what they like
        raise rows[0].fault(f"the tokenizer failed: {error}") from error


def _check(lengths: NDArray[np.int64], ids: NDArray[np.int32], texts: int) -> None:
    if lengths.shape != (texts,) or ids.shape != (lengths.sum(),) or ids.dtype != np.int32:
        raise ValueError(f"it gave {ids.dtype} ids of shape {ids.shape}, and {lengths.shape} lengths")
    if len(ids) and (ids.min() < 0 or lengths.min() < 0):
        raise ValueError(f"it gave the id {int(ids.min())}; ids are at least 0")


class TextEncoder:
    """Plain text: every token is trained on, so there are no labels."""

    has_labels = False

    def __init__(self, tokenizer: TextTokenizer, special: SpecialTokens, columns: Mapping[str, str]) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._columns = columns
        self.record: dict[str, Scalar] = {
            **tokenizer_record(tokenizer, special.record),
            "text_field": columns["text"],
        }

    def encode(self, rows: Sequence[Row], counts: PrepareCounts) -> Examples:
        """Return the example of each row; an empty text gives none."""
        texts = [row.text("text", self._columns) for row in rows]
        kept = [number for number, text in enumerate(texts) if text]
        encoded = encode_checked(
            self._tokenizer, [texts[number] for number in kept], rows, plain=not self._special.own
        )
        lengths = np.zeros(len(rows), np.int64)
        lengths[kept], ids = surround(encoded, self._special)
        return examples_of(rows, (lengths, ids))
