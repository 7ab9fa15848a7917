"""The limits of one token batch, and how its tokens are counted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from numpy.typing import ArrayLike

from raypack.arguments import choice, integer, optional_integer
from raypack.batching.lengths import LengthTable
from raypack.errors import SamplerError
from raypack.sampling.states.records import build, read_fields

MAXIMUM_TOKENS = 2**63 - 1


class TokenBatchLayout(str, Enum):
    """How a batch lies in memory, which decides what it costs."""

    PACKED = "packed"
    """Documents end to end in one row; the cost is the sum of their lengths."""
    PADDED = "padded"
    """One document a row; the cost is the number of rows times the longest."""


@dataclass(frozen=True, slots=True)
class TokenBatchOptions:
    """Limits of one batch; they never truncate, repeat, reorder or pad an example.

    Attributes:
        maximum_tokens: Token slots of one batch at the most, counted by the layout.
        maximum_examples: Examples of one batch at the most; None for no limit.
        layout: `TokenBatchLayout`, or its value "packed" or "padded".
    """

    maximum_tokens: int
    maximum_examples: int | None = None
    layout: TokenBatchLayout = TokenBatchLayout.PACKED

    def __post_init__(self) -> None:
        """Check the limits and bring them to Python's own types."""
        tokens = integer("maximum_tokens", self.maximum_tokens, minimum=1, maximum=MAXIMUM_TOKENS)
        examples = optional_integer(
            "maximum_examples", self.maximum_examples, minimum=1, maximum=MAXIMUM_TOKENS
        )
        layout = choice("layout", self.layout, [layout.value for layout in TokenBatchLayout])
        object.__setattr__(self, "maximum_tokens", tokens)
        object.__setattr__(self, "maximum_examples", examples)
        object.__setattr__(self, "layout", TokenBatchLayout(layout))

    def validate_lengths(self, lengths: LengthTable | ArrayLike) -> None:
        """Refuse a table with an example that is empty or longer than the budget.

        Args:
            lengths: (N,) tokens of each example. A `LengthTable` whose extremes are known is not read.

        Raises:
            SamplerError: an example is empty or over budget; the first such index is named.
        """
        table = LengthTable.of(lengths)
        index = table.first_outside(1, self.maximum_tokens)
        if index is None:
            return
        raise self.refusal(int(table.array[index]), index)

    def refusal(self, length: int, index: int) -> SamplerError:
        """Return the error that names an example which fits no batch.

        Args:
            length: Its tokens.
            index: Its index.
        """
        if length < 1:
            return SamplerError(
                f"lengths must be at least 1, got {length} at index {index}; "
                "drop empty examples when preparing the source"
            )
        return SamplerError(
            f"lengths must be at most maximum_tokens = {self.maximum_tokens}, got {length} at index {index}; "
            "raise the budget, or split, truncate or drop long examples when preparing the source"
        )

    def cost(self, examples: int, real_tokens: int, longest: int) -> int:
        """Return the token slots of a batch.

        Args:
            examples: Number of examples.
            real_tokens: Sum of their lengths.
            longest: The greatest of their lengths.
        """
        return real_tokens if self.layout is TokenBatchLayout.PACKED else examples * longest

    def to_dict(self) -> dict[str, Any]:
        """Return the options as a JSON-safe dict."""
        return {
            "maximum_tokens": self.maximum_tokens,
            "maximum_examples": self.maximum_examples,
            "layout": self.layout.value,
        }

    @classmethod
    def from_dict(cls, value: object) -> TokenBatchOptions:
        """Read what `to_dict` gave.

        Raises:
            SamplerError: ``value`` is anything else.
        """
        names = ("maximum_tokens", "maximum_examples", "layout")
        return build("batch options", cls, read_fields("batch options", value, names))
