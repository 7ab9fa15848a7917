"""What a tokenizer is to the prepare job."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from raypack.errors import PrepareError

Encoded = tuple[NDArray[np.int64], NDArray[np.int32]]
"""Lengths int64 (n,) of n texts and their ids int32 (t,) in order."""


class TextTokenizer(ABC):
    """Turns texts into ids; a subclass of the caller's own can be given to `prepare`.

    It must pickle, and give the same ids for the same text in every process.

    Attributes:
        kind: ``bytes``, ``file``, ``hf``, ``sentencepiece``, ``tiktoken``, or another name for the manifest.
        digest: Hash of what it was made of, part of the fingerprint; None where there is nothing.
        vocabulary: Number of ids it knows.
        special_tokens: Whether it adds its own special tokens to each document.
        bos_id: Its own token for the beginning of a document; None where it knows none.
        eos_id: Its own token for the end; None where it knows none.
    """

    kind: str
    digest: str | None
    vocabulary: int
    special_tokens: bool
    bos_id: int | None = None
    eos_id: int | None = None

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of each text, with the special tokens that the tokenizer adds by itself."""

    def encode_plain(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of each text without any special token added.

        Raises:
            PrepareError: the tokenizer adds some and was not told how to leave them out.
        """
        if self.special_tokens:
            raise PrepareError(
                f"tokenizer {self.kind!r} cannot leave its own special tokens out; define encode_plain, "
                "or leave bos and eos out"
            )
        return self.encode(texts)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token of the vocabulary by its text; None where there is none."""
        return None


def flatten(lists: Iterable[Sequence[int]]) -> Encoded:
    """Return lists of ids as lengths and flat ids."""
    arrays = [np.array(ids, np.int32) for ids in lists]
    lengths = np.array([len(ids) for ids in arrays], np.int64)
    return lengths, np.concatenate(arrays) if arrays else np.zeros(0, np.int32)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep the tokenizer from starting a thread a core: each task has one core of its own."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
