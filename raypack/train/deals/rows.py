"""Queues the stream's rows for steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from raypack.batching.plan import TokenBatchPlan
from raypack.batching.sequence.plan_block import RowMeta
from raypack.data.stream.blocks import StreamRow

EMPTY_ROW = StreamRow(
    address=-1,
    meta=RowMeta(*[0] * len(RowMeta._fields)),
    indices=np.empty(0, np.int64),
    lengths=np.empty(0, np.int32),
    input_ids=np.empty(0, np.int32),
    labels=None,
)
"""A micro-batch of a rank that has nothing left while others have."""


class Rows:
    """The stream's rows, one of which can be looked at before it is taken.

    Args:
        rows: In the order of the stream.
        has_row: Whether the next one comes without waiting.
    """

    def __init__(self, rows: Iterator[StreamRow], has_row: Callable[[], bool] = lambda: False) -> None:
        self._rows = rows
        self._has_row = has_row
        self._next: StreamRow | None = None

    def peek(self) -> StreamRow | None:
        """Return the next row without taking it, or None at the end of the run."""
        if self._next is None:
            self._next = next(self._rows, None)
        return self._next

    def at_hand(self) -> StreamRow | None:
        """Return the next row without taking it, or None where that would have to be waited for."""
        return self.peek() if self._next is not None or self._has_row() else None

    def take(self) -> StreamRow | None:
        """Return the next row, or None at the end of the run."""
        row, self._next = self.peek(), None
        return row


def plan_of(row: StreamRow) -> TokenBatchPlan:
    """Return the plan that a row answers: the planner's own figures, which it has checked.

    The indices are copied, so that a plan which is kept keeps nothing of the row's block.
    """
    meta, indices = row.meta, row.indices.copy()
    indices.flags.writeable = False
    return TokenBatchPlan.unchecked(indices, meta.real_tokens, meta.maximum_length, meta.token_slots)
