"""Encodings of tiktoken: by name, from a file of ranks, or made by the caller."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raypack.errors import PrepareError
from raypack.tokenizers.base import Encoded, TextTokenizer, flatten

# A file of ranks holds neither special tokens nor the pattern that cuts text before merging. This is the
# one of OpenAI's cl100k_base (tiktoken_ext/openai_public.py).
_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_END = "<|endoftext|>"


class TiktokenTokenizer(TextTokenizer):
    """An encoding of tiktoken. Special tokens that stand in a text are read as plain text."""

    kind = "tiktoken"
    special_tokens = False

    def __init__(self, encoding: Any) -> None:
        """Take an encoding.

        Args:
            encoding: A `tiktoken.Encoding`.
        """
        # The parts, not the name: a worker must not look up or download anything.
        self._parts = {
            "name": encoding.name,
            "pat_str": encoding._pat_str,
            "mergeable_ranks": encoding._mergeable_ranks,
            "special_tokens": encoding._special_tokens,
        }
        self._encoding = encoding
        self._learn()

    @classmethod
    def named(cls, name: str) -> TiktokenTokenizer:
        """Return an encoding by name; tiktoken fetches what is not in its own cache.

        Raises:
            PrepareError: tiktoken is not installed, or there is no such encoding.
        """
        tiktoken = _import(f"tiktoken:{name}")
        try:
            return cls(tiktoken.get_encoding(name))
        except Exception as error:  # unknown names, no network, a broken cache
            first = str(error).strip().split("\n")[0]
            raise PrepareError(f"tiktoken cannot load the encoding {name!r}: {first}") from error

    @classmethod
    def of_file(cls, path: str) -> TiktokenTokenizer:
        """Return the encoding of a file of ranks: a base64 token and its rank a line.

        Text is cut by the pattern of cl100k_base and there are no special tokens; where the model has others,
        make a `tiktoken.Encoding` and give ``TiktokenTokenizer(encoding)``.

        Raises:
            PrepareError: tiktoken is not installed, or the file is no such file.
        """
        tiktoken = _import(path)
        ranks = _read_ranks(path)
        try:
            return cls(
                tiktoken.Encoding(name="file", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={})
            )
        except Exception as error:  # the Rust core raises what it likes
            raise PrepareError(f"tokenizer {path} is no file of tiktoken: {error}") from error

    def _learn(self) -> None:
        parts = self._parts
        digest = hashlib.sha256(parts["pat_str"].encode())
        for token, rank in sorted(parts["mergeable_ranks"].items(), key=lambda item: item[1]):
            digest.update(f"{token.hex()} {rank}\n".encode())
        digest.update(repr(sorted(parts["special_tokens"].items())).encode())
        self.digest = digest.hexdigest()
        self.vocabulary = self._encoding.n_vocab
        self.eos_id = parts["special_tokens"].get(_END)

    def __getstate__(self) -> dict[str, Any]:
        return self._parts

    def __setstate__(self, parts: dict[str, Any]) -> None:
        self._parts = parts
        self._encoding = _import("tiktoken").Encoding(**parts)
        self._learn()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of each text alone."""
        return flatten(self._encoding.encode_ordinary_batch(list(texts), num_threads=1))

    def token_id(self, token: str) -> int | None:
        """Return the id of a special token by its text."""
        return self._parts["special_tokens"].get(token)


def _import(name: str) -> Any:
    try:
        import tiktoken
    except ImportError as error:
        raise PrepareError(f"tokenizer {name!r} needs tiktoken: pip install 'raypack[tiktoken]'") from error
    return tiktoken


def _read_ranks(path: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise PrepareError(
                f"tokenizer {path} is no file of tiktoken: line {number} must be a base64 token and its rank"
            ) from error
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise PrepareError(
            f"tokenizer {path} is no file of tiktoken: it has no token for byte 0x{missing:02x}"
        )
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise PrepareError(
            f"tokenizer {path} is no file of tiktoken: its ranks must be 0 to {len(ranks) - 1}"
        )
    return ranks
