"""Best-fit packing of an epoch, window by window.

A window is a fixed extent of the order. Each is packed on its own, so (window, batches of it) is
all that is needed to resume. Its batches are shuffled with a seed: in the order of packing, those of
long documents would come first.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from raypack.arrays import read_only
from raypack.batching.best_fit import best_fit_bins
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.background import Background
from raypack.batching.steps.committed_prefix import CommittedPrefix
from raypack.batching.steps.planned_run import Boundary, PlannedRun, planned_run_of
from raypack.errors import SamplerError
from raypack.sampling.orders.epoch_order import EpochOrder
from raypack.sampling.orders.permutation import KeyedPermutation

BUDGETS_A_WINDOW = 2_000
LARGEST_WINDOW = 1 << 20
_SAMPLE = 1 << 16


def window_of(lengths: LengthTable, options: TokenBatchOptions) -> int:
    """Return the window that is taken unless one is given, in examples.

    The power of two that holds 2,000 budgets or more at the mean length, so that the batch or two that
    a window leaves half full do not count; at most 1,048,576, so that a window is planned in a second.
    The mean of a large table is that of 65,536 examples at equal distances.
    """
    table = lengths.array
    if not len(table):
        return 1
    sample = table[:: -(-len(table) // _SAMPLE)]
    examples = -(-BUDGETS_A_WINDOW * options.maximum_tokens * len(sample) // int(sample.sum(dtype=np.int64)))
    return min(1 << (examples - 1).bit_length(), LARGEST_WINDOW)


class WindowPacker:
    """Batches of windows; a boundary is (the window's first position, batches of it).

    Opening a window begins the next in the background.

    Args:
        order: The epoch's order of N examples.
        lengths: Length of each example, by source index.
        options: Budget and layout.
        supervised: Label tokens of each example, shape (N,); None is length - 1.
        window: Examples of a window.
        repacked: What was committed of the window at ``position`` under other options, in order.
        position: The window that ``repacked`` is of.
    """

    def __init__(
        self,
        order: EpochOrder,
        lengths: LengthTable,
        options: TokenBatchOptions,
        supervised: npt.NDArray[Any] | None,
        *,
        window: int,
        repacked: tuple[CommittedPrefix, ...] = (),
        position: int = 0,
    ) -> None:
        self._order, self._lengths, self._options = order, lengths, options
        self._supervised = supervised
        self._window = window
        self._repacked, self._position = repacked, position
        self._next: Background[int, PlannedRun] = Background(self._pack)

    def plan_run(self, start: Boundary, count: int) -> PlannedRun:
        """Return the rest of a window; none at the epoch's end."""
        position, batches = start
        if position >= len(self._lengths):
            return PlannedRun()
        whole = self._next.get(position)
        if batches >= len(whole.plans):
            raise _beyond(start, len(whole.plans))
        after = position + self._window
        if after < len(self._lengths):
            self._next.begin(after)
        whole.drop(batches)
        return whole

    def count(self, start: Boundary) -> int:
        """Return how many batches there are from a boundary to the epoch's end."""
        position, batches = start
        return self.count_windows(position, len(self._lengths)) - batches

    def count_windows(self, start: int, stop: int) -> int:
        """Return how many batches the windows have that begin in [start, stop)."""
        total = 0
        for position in range(start, stop, self._window):
            indices, lengths, _ = self._rest(position)
            total += best_fit_bins(lengths, self._options, indices)[1]
        return total

    def _pack(self, position: int) -> PlannedRun:
        indices, lengths, key = self._rest(position)
        arranged, ends = _arranged(indices, lengths, self._options, key)
        after = min(position + self._window, len(self._lengths))
        boundaries = [(position, number) for number in range(1, len(ends))] + [(after, 0)]
        lengths = lengths[arranged]
        return planned_run_of(indices[arranged], lengths, ends, boundaries, self._options, self._supervised)

    def _rest(self, position: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], bytes | None]:
        """Return what of a window is to be packed under the present options, and the key of its batches."""
        indices = self._order.slice(position, min(position + self._window, len(self._lengths)))
        lengths = self._lengths.array[indices]
        repacked = self._repacked if position == self._position else ()
        for times, part in enumerate(repacked):
            arranged, ends = _arranged(indices, lengths, part.options, self._key(position, times))
            if part.batches >= len(ends):
                raise _beyond((position, part.batches), len(ends))
            rest = np.sort(arranged[ends[part.batches - 1] :])
            indices, lengths = indices[rest], lengths[rest]
        return indices, lengths, self._key(position, len(repacked))

    def _key(self, position: int, times: int) -> bytes | None:
        if self._order.seed is None:
            return None
        text = f"raypack windows 1\0{self._window}\0{position}\0{times}\0".encode()
        return hashlib.blake2b(text + self._order.key, digest_size=32).digest()


def _arranged(
    indices: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    options: TokenBatchOptions,
    key: bytes | None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pack a window.

    Args:
        indices: (n,) source indices of its examples, in the order of the epoch.
        lengths: (n,) tokens of each.
        options: The limits of a batch.
        key: Decides the order of the batches; None is by their first example.

    Returns:
        (n,) int64 places of the examples, batch after batch and in the epoch's order inside each, and
        (batches,) int64 one past the last example of each batch.
    """
    from raypack.batching.kernels.batches import batch_after_batch, ranks_by_first

    bins, count = best_fit_bins(lengths, options, indices)
    if key is None:
        ranks = np.empty(count, np.int64)
        ranks_by_first(read_only(bins, np.int64), ranks)
    else:
        ranks = KeyedPermutation(key, count).at(np.arange(count))
    places, ends = np.empty(len(bins), np.int64), np.empty(count, np.int64)
    batch_after_batch(read_only(bins, np.int64), read_only(ranks, np.int64), places, ends)
    return places, ends


def _beyond(boundary: Boundary, batches: int) -> SamplerError:
    position, got = boundary
    return SamplerError(
        f"cursor.batches must be below {batches}, the batches of the window at position {position}; "
        f"got {got}: the record is not of this source and these options"
    )
