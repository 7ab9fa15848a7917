"""Text to ids: UTF-8 bytes, a ``tokenizers`` file, or a Hugging Face folder."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raypack.arguments import flag, integer
from raypack.arguments import text as text_argument
from raypack.errors import PrepareError

Encoded = tuple[NDArray[np.int64], NDArray[np.int32]]
"""Lengths int64 (n,) of n texts and their ids int32 (t,) in order."""

_HF_PREFIX = "hf:"
# What a Hugging Face folder's tokenizer is made of; its weights are not.
_HF_FILES = ("tokenizer*", "special_tokens*", "added_tokens*", "vocab*", "merges*", "*.model", "*.tiktoken")


class TextTokenizer(ABC):
    """Turns texts into ids; a subclass of the caller's own can be given to `prepare`.

    It must pickle, and give the same ids for the same text in every process.

    Attributes:
        kind: ``bytes``, ``file``, ``hf``, or another name for the manifest.
        digest: Hash of what it was made of, part of the fingerprint; None where there is nothing.
        vocabulary: Number of ids it knows.
        special_tokens: Whether it adds its own special tokens to each document.
    """

    kind: str
    digest: str | None
    vocabulary: int
    special_tokens: bool

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of each text."""


class BytesTokenizer(TextTokenizer):
    """The UTF-8 bytes of a text as ids 0 to 255."""

    kind = "bytes"
    digest = None
    vocabulary = 256
    special_tokens = False

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the bytes of each text."""
        blobs = [text.encode() for text in texts]
        lengths = np.array([len(blob) for blob in blobs], np.int64)
        return lengths, np.frombuffer(b"".join(blobs), np.uint8).astype(np.int32)


class FileTokenizer(TextTokenizer):
    """A ``tokenizers`` JSON file, with its own special tokens."""

    kind = "file"
    special_tokens = True

    def __init__(self, path: str) -> None:
        """Load the file.

        Raises:
            PrepareError: it cannot be read as a tokenizer.
        """
        from tokenizers import Tokenizer

        data = Path(path).read_bytes()
        self.digest = hashlib.sha256(data).hexdigest()
        try:
            self._tokenizer = Tokenizer.from_str(data.decode())
        except Exception as error:  # the library raises plain Exception
            raise PrepareError(f"tokenizer {path} is no file of the tokenizers library: {error}") from error
        # A file may carry a truncation that would cut documents in silence, or a padding.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocabulary: int = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of each text, with the special tokens that the file itself adds."""
        with _one_thread():
            return _flatten(item.ids for item in self._tokenizer.encode_batch_fast(list(texts)))


class HuggingFaceTokenizer(TextTokenizer):
    """A tokenizer of transformers from a local folder, with its own special tokens."""

    kind = "hf"
    special_tokens = True

    def __init__(self, path: str) -> None:
        """Load the folder; nothing is downloaded and no code of it is run.

        Raises:
            PrepareError: transformers is not installed, or cannot read the folder.
        """
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise PrepareError(
                "tokenizer 'hf:...' needs transformers: pip install 'raypack[hf]', or give a tokenizer.json"
            ) from error
        self.digest = _digest_of_folder(Path(path))
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            first = str(error).strip().split("\n")[0]
            raise PrepareError(f"transformers cannot read a tokenizer from {path}: {first}") from error
        self.vocabulary = len(self._tokenizer)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of each text, with the special tokens that the tokenizer itself adds."""
        with _one_thread():
            # verbose=False: a document longer than the model's own limit is no news here.
            ids = self._tokenizer(
                list(texts), truncation=False, padding=False, return_attention_mask=False, verbose=False
            )["input_ids"]
        return _flatten(ids)


def load_tokenizer(name: str | TextTokenizer) -> TextTokenizer:
    """Load a tokenizer by name.

    Args:
        name: ``bytes``, the path of a ``tokenizers`` JSON file, or ``hf:`` and the path of a folder; a
            tokenizer of the caller's own is checked and returned.

    Raises:
        TypeError: ``name`` is no str and no tokenizer, or an attribute of it has a wrong type.
        PrepareError: there is no such tokenizer.
    """
    if isinstance(name, TextTokenizer):
        text_argument("tokenizer.kind", name.kind, error=PrepareError)
        if name.digest is not None:
            text_argument("tokenizer.digest", name.digest, error=PrepareError)
        integer("tokenizer.vocabulary", name.vocabulary, minimum=1, error=PrepareError)
        flag("tokenizer.special_tokens", name.special_tokens)
        return name
    name = text_argument("tokenizer", name, error=PrepareError)
    if name == "bytes":
        return BytesTokenizer()
    if name.startswith(_HF_PREFIX):
        folder = os.path.abspath(os.path.expanduser(name.removeprefix(_HF_PREFIX)))
        if not os.path.isdir(folder):
            raise PrepareError(
                f"tokenizer {name!r}: {folder} is no folder; download the tokenizer there first"
            )
        return HuggingFaceTokenizer(folder)
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        raise PrepareError(
            f"tokenizer {name!r} is a folder; write {_HF_PREFIX}{name} to read it by transformers"
        )
    if not os.path.isfile(path):
        raise PrepareError(
            f"tokenizer must be 'bytes', a tokenizers JSON file or 'hf:FOLDER'; {name!r} is no file"
        )
    return FileTokenizer(path)


def _flatten(lists: Iterator[list[int]] | Sequence[list[int]]) -> Encoded:
    arrays = [np.array(ids, np.int32) for ids in lists]
    lengths = np.array([len(ids) for ids in arrays], np.int64)
    return lengths, np.concatenate(arrays) if arrays else np.zeros(0, np.int32)


def _digest_of_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted({file for pattern in _HF_FILES for file in folder.glob(pattern) if file.is_file()}):
        data = file.read_bytes()
        digest.update(f"{file.name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


@contextmanager
def _one_thread() -> Iterator[None]:
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
