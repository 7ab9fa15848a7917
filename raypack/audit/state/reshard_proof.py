"""The proof of a reshard: what the ranks' records leave is what the new ranks get, each example once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap, BitMap64

from raypack.sampling.receipt import Receipt, receipt_key
from raypack.sampling.states.rank_state import SamplerState

_STRETCH = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Two ways to the same set: from the old ranks' records, and from what the new ranks are dealt."""

    left: Receipt
    """Examples that the old records leave."""
    dealt: Receipt
    """Examples of all new ranks, added up."""
    doubled: int
    """Examples that the new ranks hold twice."""
    missing: int
    """Examples left that no new rank holds."""
    foreign: int
    """Examples of new ranks that were trained already."""

    @property
    def ok(self) -> bool:
        """True when the new ranks hold exactly what was left, each example once."""
        return self.left == self.dealt and not (self.doubled or self.missing or self.foreign)


def prove(old: Iterable[SamplerState], new: Iterable[SamplerState]) -> Proof:
    """Add up what old records leave and what new ones hold, example by example.

    Args:
        old: The records of all ranks of the checkpoint.
        new: The records that a reshard makes of them.
    """
    left, was_left, _ = _gather(old)
    dealt, is_dealt, doubled = _gather(new)
    return Proof(
        left=left,
        dealt=dealt,
        doubled=doubled,
        missing=len(was_left - is_dealt),
        foreign=len(is_dealt - was_left),
    )


def stretches(state: SamplerState) -> Iterator[NDArray[np.int64]]:
    """Give a rank's source indices that are not committed, a stretch at a time."""
    order, scope = state.epoch_order(), state.scope
    for start in range(state.committed, scope.shard_size, _STRETCH):
        yield order.at(scope.positions(start, min(start + _STRETCH, scope.shard_size)))


def _gather(states: Iterable[SamplerState]) -> tuple[Receipt, Any, int]:
    total, doubled = Receipt(), 0
    seen: Any = BitMap()
    for state in states:
        if state.source_length >= 2**32 and isinstance(seen, BitMap):
            seen = BitMap64(seen)
        key = receipt_key(state.source_id, state.epoch)
        for indices in stretches(state):
            before = len(seen)
            seen.update(indices.tolist())
            doubled += before + len(indices) - len(seen)
            total += Receipt.of(key, indices, 0)
    return total, seen, doubled
