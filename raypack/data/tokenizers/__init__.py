"""Text to ids: UTF-8 bytes, ``tokenizers``, transformers, sentencepiece and tiktoken."""

from raypack.data.tokenizers.base import Encoded, TextTokenizer
from raypack.data.tokenizers.load import load_tokenizer
from raypack.data.tokenizers.plain_bytes import BytesTokenizer
from raypack.data.tokenizers.tik_token import TiktokenTokenizer

__all__ = ["BytesTokenizer", "Encoded", "TextTokenizer", "TiktokenTokenizer", "load_tokenizer"]
