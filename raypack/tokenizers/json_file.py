"""A JSON file of the ``tokenizers`` library."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from raypack.errors import PrepareError
from raypack.tokenizers.base import Encoded, TextTokenizer, flatten, one_thread


class FileTokenizer(TextTokenizer):
    """A ``tokenizers`` JSON file, with its own special tokens.

    Such a file does not say which token is BOS or EOS, so these are chosen by their text.
    """

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
        with one_thread():
            return flatten(item.ids for item in self._tokenizer.encode_batch_fast(list(texts)))

    def encode_plain(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of each text alone."""
        with one_thread():
            encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return flatten(item.ids for item in encoded)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its text."""
        return self._tokenizer.token_to_id(token)
