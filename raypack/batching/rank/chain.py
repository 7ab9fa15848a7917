"""The chain of greedy batches over one rank's order, from any slot on, computed lazily."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raypack.batching.figures import plans_from_ends
from raypack.batching.greedy import greedy_ends
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchOptions
from raypack.batching.plan import TokenBatchPlan
from raypack.sampling.lookahead import Lookahead

_FEWEST = 1_024
_MOST = 1_048_576


class BatchChain:
    """Where each batch ends, in slots of the rank's order; a memory of what is recomputed the same."""

    def __init__(self, ahead: Lookahead, lengths: LengthTable, options: TokenBatchOptions) -> None:
        """Begin at slot 0, knowing nothing.

        Args:
            ahead: The reader of the order that is batched; the chain reads with one of its own.
            lengths: (N,) tokens of each example of the source.
            options: The limits of a batch.
        """
        self.ahead = ahead
        self._reader = Lookahead(ahead.order, ahead.scope)
        self._size = ahead.scope.shard_size
        self._lengths = lengths.array
        self._options = options
        self._start = 0
        self._ends = np.empty(0, np.int64)

    def begin_at(self, slot: int) -> None:
        """Count batches from a slot on; where a known batch ends there, what is known stays."""
        if slot == self._start:
            return
        known = int(np.searchsorted(self._ends, slot, side="right"))
        on_chain = known > 0 and int(self._ends[known - 1]) == slot
        self._ends = self._ends[known:] if on_chain else np.empty(0, np.int64)
        self._start = slot

    def plans(self, start: int, stop: int) -> list[TokenBatchPlan]:
        """Return batches [start, stop), fewer where the order ends."""
        self._find(stop)
        ends = self._ends[start:stop]
        if not len(ends):
            return []
        first = int(self._ends[start - 1]) if start else self._start
        indices = self._reader.between(first, int(ends[-1]))
        return plans_from_ends(indices, self._lengths[indices], ends - first, self._options)

    def count(self) -> int:
        """Return the number of batches to the end of the order, keeping no more of them in memory."""
        batches, slot = len(self._ends), self._last()
        while slot < self._size:
            ends = self._ends_after(slot, _MOST)
            batches, slot = batches + len(ends), int(ends[-1])
        return batches

    def _find(self, batches: int) -> None:
        """Know the ends of that many batches, or of all."""
        found = [self._ends]
        known, slot = len(self._ends), self._last()
        while known < batches and slot < self._size:
            typical = (slot - self._start) // known + 1 if known else 16
            ends = self._ends_after(slot, min(max((batches - known) * typical, _FEWEST), _MOST))
            found.append(ends)
            known, slot = known + len(ends), int(ends[-1])
        if len(found) > 1:
            self._ends = np.concatenate(found)

    def _last(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else self._start

    def _ends_after(self, slot: int, plan_run: int) -> NDArray[np.int64]:
        """Return the ends of one batch or more, found among the next ``plan_run`` slots."""
        while True:
            stop = min(slot + plan_run, self._size)
            indices = self._reader.between(slot, stop)
            ends = greedy_ends(self._lengths[indices], self._options, indices) + slot
            if stop == self._size:
                return ends
            if len(ends) > 1:
                # The last batch may go on beyond the stretch.
                return ends[:-1]
            plan_run *= 2
