"""The tokenizer that needs nothing: UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raypack.tokenizers.base import Encoded, TextTokenizer


class BytesTokenizer(TextTokenizer):
    """The UTF-8 bytes of a text as ids 0 to 255; it knows no BOS and no EOS."""

    kind = "bytes"
    digest = None
    vocabulary = 256
    special_tokens = False

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the bytes of each text."""
        blobs = [text.encode() for text in texts]
        lengths = np.array([len(blob) for blob in blobs], np.int64)
        return lengths, np.frombuffer(b"".join(blobs), np.uint8).astype(np.int32)
