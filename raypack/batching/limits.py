"""The greedy rule as bare numbers, and the loop that defines it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raypack.batching.options import TokenBatchLayout, TokenBatchOptions

UNLIMITED = 2**62


class Limits(NamedTuple):
    """Options as plain integers; no sum of lengths of a table reaches ``UNLIMITED``.

    Attributes:
        tokens: Token slots of a batch at the most.
        examples: Examples of a batch at the most.
        padded: Whether a batch costs rows times longest instead of the sum.
    """

    tokens: int
    examples: int
    padded: bool

    @classmethod
    def of(cls, options: TokenBatchOptions) -> Limits:
        """Return the limits that ``options`` set."""
        examples = UNLIMITED if options.maximum_examples is None else options.maximum_examples
        padded = options.layout is TokenBatchLayout.PADDED
        return cls(min(options.maximum_tokens, UNLIMITED), min(examples, UNLIMITED), padded)


class Filled(NamedTuple):
    """How full the open batch is.

    Attributes:
        tokens: Sum of its lengths when packed, its longest length when padded.
        examples: How many examples it holds.
    """

    tokens: int = 0
    examples: int = 0


def walk(lengths: Iterable[int], limits: Limits, filled: Filled) -> tuple[list[int], Filled]:
    """Fill batches one example at a time, from an open batch on.

    Args:
        lengths: Tokens of each example, in order.
        limits: What a batch may hold.
        filled: The open batch before the first example.

    Returns:
        The positions at which a new batch begins, and the batch that is open at the end.
    """
    return (_walk_padded if limits.padded else _walk_packed)(lengths, limits, filled)


def _walk_packed(lengths: Iterable[int], limits: Limits, filled: Filled) -> tuple[list[int], Filled]:
    budget, most, _ = limits
    total, count = filled
    starts = []
    for position, length in enumerate(lengths):
        total += length
        count += 1
        if total > budget or count > most:
            starts.append(position)
            total, count = length, 1
    return starts, Filled(total, count)


def _walk_padded(lengths: Iterable[int], limits: Limits, filled: Filled) -> tuple[list[int], Filled]:
    budget, most, _ = limits
    longest, count = filled
    starts = []
    for position, length in enumerate(lengths):
        count += 1
        if length > longest:
            longest = length
        if longest * count > budget or count > most:
            starts.append(position)
            longest, count = length, 1
    return starts, Filled(longest, count)
