"""A prompt and its completion: one text, of which the completion is trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from raypack.choices import IGNORE_INDEX
from raypack.data.encoders.examples import Examples
from raypack.data.encoders.text import encode_checked, examples_of, tokenizer_record
from raypack.data.formats.row import Row
from raypack.data.ingest.counts import PrepareCounts
from raypack.data.ingest.options import PrepareOptions
from raypack.source.manifest.record import Scalar
from raypack.tokenizers import TextTokenizer
from raypack.tokenizers.special_tokens import SpecialTokens

_MERGED = (
    "the last tokens of the prompt merge with the completion's first, so a model would never see the prompt "
    "as it is trained; move the space (or what else joins them) from the prompt's end to the completion's "
    "start, or choose on_token_merge 'separate' to tokenise their parts one by one"
)


class PromptEncoder:
    """Tokenises prompt and completion as one text, and checks that the prompt alone gives its beginning.

    What stands before a text is part of the prompt, what stands after it of the completion.
    """

    has_labels = True

    def __init__(self, tokenizer: TextTokenizer, special: SpecialTokens, options: PrepareOptions) -> None:
        self._tokenizer = tokenizer
        self._before = np.array(special.before, np.int32)
        self._after = np.array(special.after, np.int32)
        self._columns = options.columns.names
        self._train_all = options.train_on == "all"
        self._separate = options.on_token_merge == "separate"
        self.record: dict[str, Scalar] = {
            **tokenizer_record(tokenizer, special.record),
            "rows": "prompt",
            "prompt_field": self._columns["prompt"],
            "completion_field": self._columns["completion"],
            "train_on": options.train_on,
            "on_token_merge": options.on_token_merge,
        }

    def encode(self, rows: Sequence[Row], counts: PrepareCounts) -> Examples:
        """Return the example of each row; labels are the ids, and -100 where a token is not trained on."""
        prompts = [self._text(row, "prompt") for row in rows]
        completions = [self._text(row, "completion") for row in rows]
        wholes = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        lengths, ids = encode_checked(self._tokenizer, [*prompts, *wholes], rows, plain=True)
        parts = np.split(ids, np.cumsum(lengths)[:-1])
        pairs = [
            self._pair(row, prompt, whole, completion, counts)
            for row, prompt, whole, completion in zip(
                rows, parts[: len(rows)], parts[len(rows) :], completions, strict=True
            )
        ]
        return self._join(rows, pairs)

    def _text(self, row: Row, role: str) -> str:
        if isinstance(row.fields[role], list):
            raise row.fault(
                f"field {self._columns[role]!r} must be a string, got list; write the messages of prompt and "
                "completion as one list 'messages', and choose rows 'chat'"
            )
        return row.text(role, self._columns)

    def _pair(
        self,
        row: Row,
        prompt: NDArray[np.int32],
        whole: NDArray[np.int32],
        completion: str,
        counts: PrepareCounts,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the tokens of prompt and completion."""
        size = len(prompt)
        if np.array_equal(whole[:size], prompt):
            return prompt, whole[size:]
        if not self._separate:
            raise row.fault(_MERGED)
        counts.separated += 1
        return prompt, encode_checked(self._tokenizer, [completion], [row], plain=True)[1]

    def _join(
        self, rows: Sequence[Row], pairs: Sequence[tuple[NDArray[np.int32], NDArray[np.int32]]]
    ) -> Examples:
        ids, labels = [], []
        lengths = np.zeros(len(rows), np.int64)
        for number, (prompt, completion) in enumerate(pairs):
            if not len(prompt) + len(completion):
                continue
            example = np.concatenate([self._before, prompt, completion, self._after])
            masked = example.copy()
            # An empty completion would teach nothing but to end.
            begin = len(self._before) + len(prompt) if len(completion) else len(example)
            if not self._train_all:
                masked[:begin] = IGNORE_INDEX
            ids.append(example)
            labels.append(masked)
            lengths[number] = len(example)
        empty = np.zeros(0, np.int32)
        return examples_of(rows, (lengths, np.concatenate([empty, *ids])), np.concatenate([empty, *labels]))
