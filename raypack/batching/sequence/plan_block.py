"""The planner's answer to a reader: the plans of some consecutive micro-batches of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class RowMeta(NamedTuple):
    """What a micro-batch carries of its step and its plan; integers, in the order of the columns."""

    epoch: int
    step: int
    """Number of the step in its epoch."""
    micro: int
    """Number of the micro-batch in its step, on this rank."""
    micros: int
    """Micro-batches of the step on every rank."""
    step_batches: int
    """Batches of the step over all ranks, empty ones not counted."""
    step_supervised: int
    """Label tokens of the step over all ranks."""
    step_tokens: int
    """Tokens of the step over all ranks."""
    step_imbalance: int
    """The greatest attention cost of a rank over the mean of all, in millionths; 0 where it is not known."""
    real_tokens: int
    maximum_length: int
    token_slots: int
    end_position: int
    """Position of the cursor after the step."""
    end_batches: int
    """Batches of that cursor's window before it."""


@dataclass(frozen=True, slots=True)
class PlanBlock:
    """Plans of the micro-batches ``first`` to ``first + len(counts)`` of one rank.

    Micro-batches are numbered from the state that the attempt began with. Rows below ``first + num_expired``
    were committed before and are not planned again: they hold nothing.
    """

    first: int
    num_expired: int
    meta: npt.NDArray[np.int64]
    """Shape (rows, len(RowMeta._fields))."""
    counts: npt.NDArray[np.int64]
    """Examples of each row, shape (rows,)."""
    indices: npt.NDArray[np.int64]
    """Source indices of all rows, one after another, shape (sum(counts),)."""

    def __len__(self) -> int:
        return len(self.counts)
