"""Assigns a step's batches to ranks: equal counts, balanced by attention cost.

A causal transformer layer costs a·Σ length for its dense part and b·Σ length² for its attention, so
batches with equal numbers of tokens may differ by a factor in time. Longest processing time first
(Graham 1969) with equal counts evens that out, and swaps between the slowest rank and others finish it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raypack.arguments import integer

DEFAULT_HIDDEN_SIZE = 1024
_MOST_SWAPS = 64
_MOST_PAIRS = 2**17
"""Pairs of batches that are looked at for one swap."""
_EVEN = 1.002
_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """Weights of the cost of a batch: ``linear``·Σ length + ``quadratic``·Σ length².

    The default is the ratio of a causal transformer's dense to attention work at hidden size 1,024:
    12·hidden size to 1.
    """

    linear: int = 12 * DEFAULT_HIDDEN_SIZE
    """Weight of one token slot."""
    quadratic: int = 1
    """Weight of one pair of positions of one document."""

    def __post_init__(self) -> None:
        for name in ("linear", "quadratic"):
            object.__setattr__(
                self, name, integer(f"attention_cost.{name}", getattr(self, name), minimum=0, maximum=2**31)
            )

    @classmethod
    def of(cls, value: AttentionCost | Sequence[int] | None) -> AttentionCost:
        """Return ``value`` as a cost: None is the default, a pair of integers is (linear, quadratic)."""
        if value is None:
            return cls()
        if isinstance(value, AttentionCost):
            return value
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or len(value) != 2:
            raise TypeError(
                f"attention_cost must be an AttentionCost or a pair (linear, quadratic), got {value!r}"
            )
        return cls(*value)


def deal_batches(costs: Sequence[int], world_size: int) -> list[list[int]]:
    """Deal batches to ranks so that costs are balanced and no rank has more than its share.

    Args:
        costs: The cost of each batch of the step, shape (batches,).
        world_size: The number of data ranks.

    Returns:
        For each rank the positions of its batches, ascending; at most ceil(batches / world_size)
        each, so the ranks that have fewer are filled up with empty plans.

    Raises:
        SamplerError: ``world_size`` is not positive.
    """
    world_size = integer("world_size", world_size, minimum=1)
    ranks = _longest_first(costs, world_size)
    if len(ranks) > 1 and sum(costs) < _EXACT:
        ranks = _swapped(np.array([*costs, 0], np.float64), ranks)
    return [sorted(positions) for positions in ranks]


def _longest_first(costs: Sequence[int], world_size: int) -> list[list[int]]:
    """Give each batch, the costliest first, to the least-loaded rank that has a free slot."""
    capacity = -(-len(costs) // world_size)
    ranks: list[list[int]] = [[] for _ in range(world_size)]
    loads = [(0, 0, rank) for rank in range(min(world_size, len(costs)))]
    for position in sorted(range(len(costs)), key=lambda p: (-costs[p], p)):
        load, count, rank = heapq.heappop(loads)
        ranks[rank].append(position)
        if count + 1 < capacity:
            heapq.heappush(loads, (load + costs[position], count + 1, rank))
    return ranks


def _swapped(costs: npt.NDArray[np.float64], ranks: list[list[int]]) -> list[list[int]]:
    """Swap batches of the slowest rank with those of others while that helps.

    Args:
        costs: (batches + 1,) integers below 2^53 in all, so that sums are exact; the last is 0, an empty
            place.
        ranks: The positions of each rank's batches.
    """
    nothing = len(costs) - 1
    places = np.full((len(ranks), max(map(len, ranks), default=0)), nothing)
    for rank, positions in enumerate(ranks):
        places[rank, : len(positions)] = positions
    loads = costs[places].sum(axis=1)
    pairs = max(1, places.shape[1] ** 2)
    partners = max(1, _MOST_PAIRS // pairs)
    for _ in range(min(_MOST_SWAPS, 1 + _MOST_SWAPS * _MOST_PAIRS // pairs)):
        slowest = int(loads.argmax())
        if loads[slowest] <= _EVEN * loads.mean():
            break
        fastest = np.argsort(loads, kind="stable")[:partners]
        freed = costs[places[slowest]][:, None, None] - costs[places[fastest]]
        after = np.maximum(loads[slowest] - freed, loads[fastest][:, None] + freed)
        after[:, fastest == slowest] = np.inf
        best = int(after.argmin())
        if after.flat[best] >= loads[slowest]:
            break
        mine, partner, theirs = np.unravel_index(best, after.shape)
        difference, other = freed[mine, partner, theirs], fastest[partner]
        swap = places[slowest, mine], places[other, theirs]
        places[other, theirs], places[slowest, mine] = swap
        loads[slowest] -= difference
        loads[other] += difference
    return [row[row != nothing].tolist() for row in places]
