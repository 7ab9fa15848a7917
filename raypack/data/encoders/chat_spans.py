"""Where the answers of a chat lie among its tokens, found from its beginnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from raypack.data.formats.row import Row


def answer_spans(
    row: Row,
    name: str,
    whole: NDArray[np.int32],
    answers: Sequence[int],
    prefixes: Sequence[NDArray[np.int32]],
) -> Iterator[tuple[int, int]]:
    """Yield the tokens [start, stop) of each answer.

    Args:
        row: The row, for messages.
        name: The name of its column.
        whole: The tokens (t,) of the whole chat.
        answers: The places of the answers among the messages.
        prefixes: For each answer the tokens of the chat up to it, where a model is asked for it, and of the
            chat through it.

    Raises:
        RowFault: one of these is not the beginning of the whole chat.
    """
    for answer, before, through in zip(answers, prefixes[::2], prefixes[1::2], strict=True):
        for tokens, what in ((before, "up to"), (through, "through")):
            if not np.array_equal(whole[: len(tokens)], tokens):
                raise row.fault(
                    f"the chat {what} {name}[{answer}] does not give the first tokens of the whole chat (the "
                    "template changes earlier messages, or tokens merge), so what the assistant wrote cannot "
                    "be told; give a chat_template with {% generation %} around it, or choose train_on "
                    "'last_answer' or 'all'"
                )
        yield len(before), len(through)
