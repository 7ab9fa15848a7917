"""The reader of a job, from what the user chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raypack.data.encoders.chat import ChatEncoder
from raypack.data.encoders.example_reader import ExampleReader, RowReader
from raypack.data.encoders.prompt import PromptEncoder
from raypack.data.encoders.text import RowEncoder, TextEncoder
from raypack.data.encoders.tokens import TokenReader
from raypack.data.formats.inputs import InputFile
from raypack.data.ingest.options import PrepareOptions
from raypack.errors import PrepareError
from raypack.source.manifest.record import Scalar
from raypack.tokenizers import TextTokenizer, load_tokenizer
from raypack.tokenizers.special_tokens import choose_special_tokens


def choose_reader(
    files: Sequence[InputFile], tokenizer: str | TextTokenizer, options: PrepareOptions
) -> ExampleReader[Any]:
    """Return the reader of the files' rows.

    Raises:
        TypeError: ``tokenizer`` is none.
        PrepareError: the tokenizer cannot be loaded or does not serve for these rows, or a file cannot hold
            them.
    """
    if options.rows == "tokens":
        if tokenizer != "bytes":
            raise PrepareError(
                "tokenizer is not for rows 'tokens', which are tokenised already; leave it out"
            )
        return TokenReader(options.columns, files)
    text = next((file for file in files if file.format.kind == "text"), None)
    if options.rows != "text" and text is not None:
        raise PrepareError(
            f"{text.name} is one text, and rows {options.rows!r} are read from .jsonl and .parquet files; "
            "leave it out"
        )
    return RowReader(options.columns, _encoder(load_tokenizer(tokenizer), options))


def _encoder(tokenizer: TextTokenizer, options: PrepareOptions) -> RowEncoder:
    if options.rows == "chat":
        return ChatEncoder(tokenizer, options)
    special = choose_special_tokens(tokenizer, options.bos, options.eos, answers=options.rows == "prompt")
    if options.rows == "prompt":
        return PromptEncoder(tokenizer, special, options)
    return TextEncoder(tokenizer, special, options.columns.names)


def record_of(reader: ExampleReader[Any], options: PrepareOptions) -> dict[str, Scalar]:
    """Return what the manifest says of how the tokens were made."""
    record = dict(reader.record)
    if reader.has_labels:
        record["unsupervised"] = options.unsupervised
    record["max_length"] = options.max_length
    record["oversize"] = None if options.max_length is None else options.oversize
    return record
