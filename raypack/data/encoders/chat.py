"""Chats: the tokenizer's chat template, and which of its tokens an assistant wrote."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raypack.arguments import shown, type_name
from raypack.choices import IGNORE_INDEX
from raypack.data.encoders.chat_spans import answer_spans
from raypack.data.encoders.examples import Examples
from raypack.data.encoders.text import examples_of, tokenizer_record
from raypack.data.formats.row import Row
from raypack.data.ingest.counts import PrepareCounts
from raypack.data.ingest.options import PrepareOptions
from raypack.errors import PrepareError
from raypack.source.manifest.record import Scalar
from raypack.tokenizers.base import TextTokenizer, one_thread
from raypack.tokenizers.hugging_face import HuggingFaceTokenizer

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
ASSISTANT = "assistant"
_NOW = "strftime_now"


class ChatEncoder:
    """Renders a chat by a Jinja template and tokenises it; the template places all special tokens.

    Where the template marks what an assistant writes (``{% generation %}``), its mark decides what is trained
    on. Elsewhere the chat is rendered up to each answer and through it, and each must be the beginning of the
    whole, token by token.
    """

    has_labels = True

    def __init__(self, tokenizer: TextTokenizer, options: PrepareOptions) -> None:
        """Check that chats can be rendered.

        Raises:
            PrepareError: the tokenizer has no chat template, or is none of transformers.
        """
        if not isinstance(tokenizer, HuggingFaceTokenizer):
            raise PrepareError(
                f"rows 'chat' need a chat template, so a tokenizer 'hf:FOLDER'; got {tokenizer.kind!r}"
            )
        self._tokenizer = tokenizer
        self._template = options.chat_template
        self._columns = options.columns.names
        self._train_on = options.train_on
        template = _check_template(tokenizer, self._template)
        self.record: dict[str, Scalar] = {
            **tokenizer_record(tokenizer, "the chat template's"),
            "rows": "chat",
            "messages_field": self._columns["messages"],
            "tools_field": self._columns["tools"],
            "train_on": options.train_on,
            "chat_template_digest": hashlib.sha256(template.encode()).hexdigest(),
        }
        if _NOW in template:
            # Such a template writes the day into every chat, so another day gives other tokens.
            self.record["template_date"] = date.today().isoformat()

    def encode(self, rows: Sequence[Row], counts: PrepareCounts) -> Examples:
        """Return the example of each row; labels are the ids, and -100 where a token is not trained on."""
        ids, labels = [], []
        for row in rows:
            tokens, is_trained = self._encode(row)
            ids.append(tokens)
            labels.append(np.where(is_trained, tokens, IGNORE_INDEX).astype(np.int32))
        lengths = np.array([len(tokens) for tokens in ids], np.int64)
        empty = np.zeros(0, np.int32)
        return examples_of(rows, (lengths, np.concatenate([empty, *ids])), np.concatenate([empty, *labels]))

    def _encode(self, row: Row) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the tokens (t,) of a row, and which are trained on."""
        messages, tools = self._messages(row), self._tools(row)
        template = _call(row, lambda: self._tokenizer.inner.get_chat_template(self._template, tools))
        if self._train_on == "all":
            [tokens] = self._tokens(row, [self._render(row, template, messages, tools, prompt=False)])
            return tokens, np.ones(len(tokens), bool)
        answers = [place for place, message in enumerate(messages) if message["role"] == ASSISTANT]
        is_marked = _GENERATION.search(template) is not None
        if self._train_on == "last_answer":
            answers = answers[-1:]
        elif is_marked:
            return self._marked(row, template, messages, tools)
        ends = {place: [messages[:place], messages[: place + 1]] for place in answers}
        texts = [self._render(row, template, messages, tools, prompt=False)]
        for place, (before, through) in ends.items():
            if not place:
                raise row.fault(_begins(self._columns["messages"]))
            texts.append(self._render(row, template, before, tools, prompt=True))
            texts.append(self._render(row, template, through, tools, prompt=False))
        whole, *prefixes = self._tokens(row, texts)
        is_trained = np.zeros(len(whole), bool)
        for start, stop in answer_spans(row, self._columns["messages"], whole, answers, prefixes):
            is_trained[start:stop] = True
        return whole, is_trained

    def _marked(
        self, row: Row, template: str, messages: Sequence[Any], tools: Any
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return what the template's own mark says."""
        with one_thread():
            encoded = _call(
                row,
                lambda: self._tokenizer.inner.apply_chat_template(
                    messages,
                    tools=tools,
                    chat_template=template,
                    tokenize=True,
                    return_dict=True,
                    return_assistant_tokens_mask=True,
                ),
            )
        tokens = np.array(encoded["input_ids"], np.int32)
        mask = np.array(encoded["assistant_masks"], bool)
        if tokens.ndim != 1 or mask.shape != tokens.shape:
            raise row.fault(f"transformers gave {tokens.shape} tokens of the chat and a mask of {mask.shape}")
        return tokens, mask

    def _render(self, row: Row, template: str, messages: Sequence[Any], tools: Any, *, prompt: bool) -> str:
        text = _call(
            row,
            lambda: self._tokenizer.inner.apply_chat_template(
                messages, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=prompt
            ),
        )
        return str(text)

    def _tokens(self, row: Row, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        # A chat through its last answer is most often the whole chat.
        distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        lengths, ids = self._tokenizer.encode_plain(list(distinct))
        tokens = np.split(ids, np.cumsum(lengths)[:-1])
        return [tokens[distinct[text]] for text in texts]

    def _messages(self, row: Row) -> list[dict[str, Any]]:
        name = self._columns["messages"]
        messages = row.fields["messages"]
        if not isinstance(messages, list) or not messages:
            raise row.fault(f"field {name!r} must be a list of messages, got {_kind(messages)}")
        for place, message in enumerate(messages):
            if not isinstance(message, dict):
                raise row.fault(f"{name}[{place}] must be an object, got {type_name(message)}")
            if not isinstance(message.get("role"), str):
                raise row.fault(
                    f"{name}[{place}] must have a 'role' of 'system', 'user', 'assistant' or the like; "
                    f"there are {shown(sorted(map(str, message)))}"
                )
        # Parquet gives every message the fields of all, empty where it has none.
        return [{key: value for key, value in message.items() if value is not None} for message in messages]

    def _tools(self, row: Row) -> list[Any] | None:
        tools = row.fields.get("tools")
        if tools is not None and not isinstance(tools, list):
            raise row.fault(f"field {self._columns['tools']!r} must be a list, got {type_name(tools)}")
        return tools or None


def _call(row: Row, function: Any) -> Any:
    try:
        return function()
    except Exception as error:  # a template may raise anything
        raise row.fault(f"the chat template failed: {type(error).__name__}: {error}") from error


def _kind(value: object) -> str:
    return "an empty list" if value == [] else type_name(value)


def _begins(name: str) -> str:
    return (
        f"{name}[0] is an answer with nothing before it, so where it begins cannot be told; give a "
        "chat_template with {% generation %} around what is trained on, or choose train_on 'all'"
    )


def _check_template(tokenizer: HuggingFaceTokenizer, template: str | None) -> str:
    """Return the template that is used where a chat has no tools."""
    try:
        chosen: str = tokenizer.inner.get_chat_template(template)
    except ValueError as error:
        raise PrepareError(
            "the tokenizer has no chat template of its own; give one by chat_template, a Jinja file"
        ) from error
    if _GENERATION.search(chosen) and not tokenizer.inner.is_fast:
        raise PrepareError(
            "a chat template with {% generation %} needs a fast tokenizer; add its tokenizer.json"
        )
    return chosen
