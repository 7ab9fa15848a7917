"""How rows become examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raypack.arguments import choice, optional_integer
from raypack.arguments import text as text_argument
from raypack.choices import INT32_MAX, OVERSIZE
from raypack.data.formats.columns import RowColumns, row_columns
from raypack.errors import PrepareError
from raypack.tokenizers.special_tokens import Choice, check_choice

TRAIN_ON = ("answers", "last_answer", "all")
UNSUPERVISED = ("error", "drop")
ON_TOKEN_MERGE = ("error", "separate")
CHUNK_BYTES = {"text": 64 << 20, "tokens": 64 << 20, "prompt": 8 << 20, "chat": 8 << 20}
"""Bytes of input a task, about: a worker needs ten times 64 MiB of memory for byte tokens, and minutes for
8 MiB of chats."""

# The kinds of rows that have a use for an option; elsewhere anything but its default is a mistake.
_USES = {
    "train_on": ("prompt", "chat"),
    "unsupervised": ("prompt", "chat", "tokens"),
    "on_token_merge": ("prompt",),
    "bos": ("text", "prompt"),
    "eos": ("text", "prompt"),
    "chat_template": ("chat",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """What a user chose; see `raypack.data.prepare`.

    Attributes:
        rows: What a row is, one of `raypack.data.formats.columns.ROWS`.
        text_field: The column with the text of rows ``text``.
        fields: The columns of the other kinds, by role, where they are not named like it.
        train_on: Which tokens of a prompt or a chat are trained on: one of `TRAIN_ON`.
        unsupervised: What happens to an example without a token to train on: one of `UNSUPERVISED`.
        on_token_merge: What happens where tokens of a prompt and its completion merge: one of
            `ON_TOKEN_MERGE`.
        bos: The special token before a text.
        eos: The special token after it.
        chat_template: The text of a Jinja template in place of the tokenizer's own.
        max_length: Tokens of an example at the most; None for no limit.
        oversize: What happens to a longer one: one of `OVERSIZE`; all but ``error`` need a limit.
        chunk_bytes: Bytes of input that one task reads, about; None takes what suits the rows.
        columns: Where the values of a row are found; settled from the above.
    """

    rows: str = "text"
    text_field: str = "text"
    fields: Mapping[str, str] | None = None
    train_on: str = "answers"
    unsupervised: str = "error"
    on_token_merge: str = "error"
    bos: Choice = None
    eos: Choice = None
    chat_template: str | None = None
    max_length: int | None = None
    oversize: str = "error"
    chunk_bytes: int | None = None
    columns: RowColumns = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", row_columns(self.rows, self.text_field, self.fields))
        choice("train_on", self.train_on, TRAIN_ON, error=PrepareError)
        choice("unsupervised", self.unsupervised, UNSUPERVISED, error=PrepareError)
        choice("on_token_merge", self.on_token_merge, ON_TOKEN_MERGE, error=PrepareError)
        check_choice("bos", self.bos)
        check_choice("eos", self.eos)
        if self.chat_template is not None:
            text_argument("chat_template", self.chat_template, error=PrepareError)
        choice("oversize", self.oversize, OVERSIZE, error=PrepareError)
        self._check_limits()
        self._check_uses()

    @property
    def task_bytes(self) -> int:
        """Bytes of input that one task reads, about."""
        return CHUNK_BYTES[self.rows] if self.chunk_bytes is None else self.chunk_bytes

    def _check_limits(self) -> None:
        limit = optional_integer(
            "max_length", self.max_length, minimum=1, maximum=INT32_MAX, error=PrepareError
        )
        object.__setattr__(self, "max_length", limit)
        if limit is None and self.oversize != "error":
            raise PrepareError(
                f"oversize {self.oversize!r} needs max_length, the most tokens of an example; give it too"
            )
        chunk = optional_integer("chunk_bytes", self.chunk_bytes, minimum=1, error=PrepareError)
        object.__setattr__(self, "chunk_bytes", chunk)

    def _check_uses(self) -> None:
        defaults = {"train_on": "answers", "unsupervised": "error", "on_token_merge": "error"}
        for name, kinds in _USES.items():
            if self.rows not in kinds and getattr(self, name) != defaults.get(name):
                listed = " and ".join(map(repr, kinds))
                raise PrepareError(
                    f"{name} is for rows {listed}, got rows {self.rows!r}; leave it out, or choose other rows"
                )
        if self.rows == "prompt" and self.train_on == "last_answer":
            raise PrepareError("train_on must be 'answers' or 'all' for rows 'prompt', got 'last_answer'")
