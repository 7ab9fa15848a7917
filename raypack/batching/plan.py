"""One batch before it is loaded: which examples, and exactly what they cost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raypack.arguments import integer
from raypack.errors import SamplerError


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatchPlan:
    """The source indices of one batch with their exact cost, equal by value.

    Attributes:
        indices: (n,) int64, read-only; n = 0 in an empty plan, a batch that only takes part.
        real_tokens: Sum of the examples' lengths.
        maximum_sequence_length: Length of the longest example; 0 in an empty plan.
        token_slots: Tokens that the batch occupies: the sum when packed, rows times longest when padded.
    """

    indices: NDArray[np.int64]
    real_tokens: int
    maximum_sequence_length: int
    token_slots: int

    def __post_init__(self) -> None:
        """Take a read-only copy of the indices and check the figures against them."""
        object.__setattr__(self, "indices", _own_indices(self.indices))
        for name in ("real_tokens", "maximum_sequence_length", "token_slots"):
            object.__setattr__(self, name, integer(name, getattr(self, name), minimum=0))
        if not self.maximum_sequence_length <= self.real_tokens <= self.token_slots:
            raise SamplerError(
                "a plan must have maximum_sequence_length <= real_tokens <= token_slots, got "
                f"{self.maximum_sequence_length}, {self.real_tokens}, {self.token_slots}"
            )
        if (self.token_slots == 0) != (len(self.indices) == 0):
            raise SamplerError(
                f"a plan must have tokens exactly where it has examples, got {len(self.indices)} examples "
                f"and {self.token_slots} token slots"
            )

    @classmethod
    def empty(cls) -> TokenBatchPlan:
        """Return the plan of no example, which keeps ranks together."""
        return cls(np.empty(0, np.int64), 0, 0, 0)

    @classmethod
    def unchecked(
        cls, indices: NDArray[np.int64], real_tokens: int, longest: int, token_slots: int
    ) -> TokenBatchPlan:
        """Make a plan of figures that planning itself has computed, without checks or copies.

        Args:
            indices: (n,) int64, read-only.
            real_tokens: Sum of the lengths.
            longest: The greatest length.
            token_slots: The cost.
        """
        plan = object.__new__(cls)
        put = object.__setattr__
        put(plan, "indices", indices)
        put(plan, "real_tokens", real_tokens)
        put(plan, "maximum_sequence_length", longest)
        put(plan, "token_slots", token_slots)
        return plan

    @classmethod
    def all_unchecked(
        cls,
        indices: NDArray[np.int64],
        ends: list[int],
        real_tokens: list[int],
        longest: list[int],
        token_slots: list[int],
    ) -> list[TokenBatchPlan]:
        """Make the plans of batches that lie end to end; see `unchecked`.

        Args:
            indices: (n,) int64 source indices, batch after batch; the plans hold read-only views of it.
            ends: One past each batch's last example.
            real_tokens: The sum of each batch's lengths.
            longest: The greatest of them.
            token_slots: The cost.
        """
        view = indices.view()
        view.flags.writeable = False
        parts = [view[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]
        plans = list(map(object.__new__, repeat(cls, len(parts))))
        columns: tuple[list[Any], ...] = (parts, real_tokens, longest, token_slots)
        for name, column in zip(cls.__slots__, columns, strict=True):
            # A million plans a second: each field is set in one loop of the interpreter's own.
            deque(map(getattr(cls, name).__set__, plans, column), maxlen=0)
        return plans

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.indices)

    def __eq__(self, other: object) -> bool:
        """Compare by value."""
        if not isinstance(other, TokenBatchPlan):
            return NotImplemented
        return self._figures() == other._figures() and np.array_equal(self.indices, other.indices)

    def __hash__(self) -> int:
        """Hash by value."""
        return hash((self._figures(), self.indices.tobytes()))

    def _figures(self) -> tuple[int, int, int]:
        return self.real_tokens, self.maximum_sequence_length, self.token_slots


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Loaded examples with the plan that named them.

    Attributes:
        plan: The indices and their cost.
        items: The examples, in the plan's order.
    """

    plan: TokenBatchPlan
    items: list[Any]


def _own_indices(indices: object) -> NDArray[np.int64]:
    array = np.asarray(indices)
    if array.size == 0 and not isinstance(indices, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, got dtype {array.dtype}")
    if array.ndim != 1:
        raise SamplerError(f"indices must be one-dimensional, got shape {array.shape}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**63:
        raise SamplerError(f"indices must be at least 0 and fit int64, got {int(array.min())}")
    own = np.array(array, dtype=np.int64, copy=True)
    own.flags.writeable = False
    return own
