"""Tokenizers by name."""

from __future__ import annotations

import os

from raypack.arguments import flag, integer, optional_integer
from raypack.arguments import text as text_argument
from raypack.errors import PrepareError
from raypack.tokenizers.base import TextTokenizer
from raypack.tokenizers.hugging_face import HuggingFaceTokenizer
from raypack.tokenizers.json_file import FileTokenizer
from raypack.tokenizers.plain_bytes import BytesTokenizer
from raypack.tokenizers.sentence_piece import SentencePieceTokenizer
from raypack.tokenizers.tik_token import TiktokenTokenizer

_HF = "hf:"
_TIKTOKEN = "tiktoken:"


def load_tokenizer(name: str | TextTokenizer) -> TextTokenizer:
    """Load a tokenizer by name.

    Args:
        name: ``bytes``; the path of a ``tokenizers`` JSON file, of a ``.model`` file of sentencepiece or of
            a ``.tiktoken`` file of ranks; ``hf:`` and the path of a folder; ``tiktoken:`` and the name of an
            encoding. A tokenizer of the caller's own is checked and returned.

    Raises:
        TypeError: ``name`` is no str and no tokenizer, or an attribute of it has a wrong type.
        PrepareError: there is no such tokenizer, or its library is not installed.
    """
    if isinstance(name, TextTokenizer):
        return _checked(name)
    name = text_argument("tokenizer", name, error=PrepareError)
    if name == "bytes":
        return BytesTokenizer()
    if name.startswith(_HF):
        return _of_folder(name)
    if name.startswith(_TIKTOKEN):
        return TiktokenTokenizer.named(
            text_argument("the name after tiktoken:", name.removeprefix(_TIKTOKEN), error=PrepareError)
        )
    return _of_file(name)


def _checked(tokenizer: TextTokenizer) -> TextTokenizer:
    text_argument("tokenizer.kind", tokenizer.kind, error=PrepareError)
    if tokenizer.digest is not None:
        text_argument("tokenizer.digest", tokenizer.digest, error=PrepareError)
    integer("tokenizer.vocabulary", tokenizer.vocabulary, minimum=1, error=PrepareError)
    flag("tokenizer.special_tokens", tokenizer.special_tokens)
    optional_integer("tokenizer.bos_id", tokenizer.bos_id, minimum=0, error=PrepareError)
    optional_integer("tokenizer.eos_id", tokenizer.eos_id, minimum=0, error=PrepareError)
    return tokenizer


def _of_folder(name: str) -> TextTokenizer:
    folder = os.path.abspath(os.path.expanduser(name.removeprefix(_HF)))
    if not os.path.isdir(folder):
        raise PrepareError(f"tokenizer {name!r}: {folder} is no folder; download the tokenizer there first")
    return HuggingFaceTokenizer(folder)


def _of_file(name: str) -> TextTokenizer:
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        raise PrepareError(f"tokenizer {name!r} is a folder; write {_HF}{name} to read it by transformers")
    if not os.path.isfile(path):
        raise PrepareError(
            "tokenizer must be 'bytes', a file of tokenizers, sentencepiece or tiktoken, 'hf:FOLDER' or "
            f"'tiktoken:NAME'; {name!r} is no file"
        )
    if path.endswith(".model"):
        return SentencePieceTokenizer(path)
    if path.endswith(".tiktoken"):
        return TiktokenTokenizer.of_file(path)
    return FileTokenizer(path)
