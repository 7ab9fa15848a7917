"""A tokenizer of transformers, from a local folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raypack.errors import PrepareError
from raypack.tokenizers.base import Encoded, TextTokenizer, flatten, one_thread

# What a Hugging Face folder's tokenizer is made of; its weights are not.
_FILES = (
    "tokenizer*",
    "special_tokens*",
    "added_tokens*",
    "vocab*",
    "merges*",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates/*",
)


class HuggingFaceTokenizer(TextTokenizer):
    """A tokenizer of transformers from a local folder, with its own special tokens.

    Attributes:
        inner: The object of transformers, whose chat template renders chats.
    """

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
            self.inner: Any = AutoTokenizer.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            first = str(error).strip().split("\n")[0]
            raise PrepareError(f"transformers cannot read a tokenizer from {path}: {first}") from error
        self.vocabulary = len(self.inner)
        self.bos_id = self.inner.bos_token_id
        self.eos_id = self.inner.eos_token_id

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of each text, with the special tokens that the tokenizer itself adds."""
        return self._encode(texts, add_special_tokens=True)

    def encode_plain(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of each text alone."""
        return self._encode(texts, add_special_tokens=False)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its text."""
        return self.inner.get_vocab().get(token)

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> Encoded:
        if not texts:
            return flatten(())
        with one_thread():
            # verbose=False: a document longer than the model's own limit is no news here.
            ids = self.inner(
                list(texts),
                add_special_tokens=add_special_tokens,
                truncation=False,
                padding=False,
                return_attention_mask=False,
                verbose=False,
            )["input_ids"]
        return flatten(ids)


def _digest_of_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted({file for pattern in _FILES for file in folder.glob(pattern) if file.is_file()}):
        data = file.read_bytes()
        digest.update(f"{file.name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()
