"""A model file of sentencepiece."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raypack.errors import PrepareError
from raypack.tokenizers.base import Encoded, TextTokenizer, flatten


class SentencePieceTokenizer(TextTokenizer):
    """A ``.model`` file of sentencepiece; it adds no special token by itself, and knows its BOS and EOS."""

    kind = "sentencepiece"
    special_tokens = False

    def __init__(self, path: str) -> None:
        """Load the file.

        Raises:
            PrepareError: sentencepiece is not installed, or cannot read the file.
        """
        data = Path(path).read_bytes()
        self.digest = hashlib.sha256(data).hexdigest()
        self._load(data, path)

    def _load(self, data: bytes, path: str) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise PrepareError(
                f"tokenizer {path} needs sentencepiece: pip install 'raypack[sentencepiece]'"
            ) from error
        self._state = data, path
        try:
            self._processor: Any = SentencePieceProcessor(model_proto=data)
            self.vocabulary: int = self._processor.get_piece_size()
        except (RuntimeError, OSError, ValueError, IndexError) as error:
            raise PrepareError(f"tokenizer {path} is no model file of sentencepiece: {error}") from error
        if not self.vocabulary:
            raise PrepareError(f"tokenizer {path} is no model file of sentencepiece: it has no pieces")
        bos, eos = self._processor.bos_id(), self._processor.eos_id()
        self.bos_id = bos if bos >= 0 else None
        self.eos_id = eos if eos >= 0 else None

    def __getstate__(self) -> dict[str, Any]:
        return {"digest": self.digest, "state": self._state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.digest = state["digest"]
        self._load(*state["state"])

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of each text alone."""
        lists = self._processor.encode(
            list(texts), out_type=int, num_threads=1, add_bos=False, add_eos=False, enable_sampling=False
        )
        return flatten(lists)

    def token_id(self, token: str) -> int | None:
        """Return the id of a piece by its text."""
        number = self._processor.piece_to_id(token)
        return number if self._processor.id_to_piece(number) == token else None
