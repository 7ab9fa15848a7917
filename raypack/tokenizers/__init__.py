"""Text to ids: UTF-8 bytes, ``tokenizers``, transformers, sentencepiece and tiktoken."""

from raypack.tokenizers.base import Encoded, TextTokenizer
from raypack.tokenizers.load import load_tokenizer
from raypack.tokenizers.plain_bytes import BytesTokenizer
from raypack.tokenizers.tik_token import TiktokenTokenizer

__all__ = ["BytesTokenizer", "Encoded", "TextTokenizer", "TiktokenTokenizer", "load_tokenizer"]
