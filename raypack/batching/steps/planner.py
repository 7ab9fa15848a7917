"""The global plan: an epoch's order, packed into batches, grouped into optimizer steps.

Planned for all ranks together and dealt afterwards, so step k trains the same examples at any world
size, and its state does not depend on ranks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from raypack.arguments import choice, integer, optional_integer, text
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.committed_prefix import MOST_REPACKED, CommittedPrefix
from raypack.batching.steps.packers import check_same, checked_supervised, checked_window, packer_of
from raypack.batching.steps.planned_batches import PlannedBatches
from raypack.batching.steps.state import StepPlannerState
from raypack.batching.steps.step import StepCursor, StepPlan
from raypack.choices import PACKINGS, SHUFFLES
from raypack.errors import SamplerError
from raypack.sampling.orders.epoch_order import EpochOrder
from raypack.sampling.states.records import check_record


class StepPlanner:
    """Plans the global order of an epoch into optimizer steps. Not thread-safe.

    Args:
        source_id: The caller's name of the immutable source (a fingerprint, say).
        lengths: Length of each example in tokens, int32, shape (N,); an array or a `LengthTable`.
        options: Budget and layout of a batch.
        batches_per_step: Batches of every step but an epoch's last.
        packing: ``best_fit``: each window of the order is packed as full as it can be. ``greedy``: the
            longest prefix of the order that fits, nothing pulled forward.
        window: Examples of a window of best fit; None takes what `window_of` returns. Must be None
            under greedy packing.
        seed: Seed of the order; None is source order.
        epoch: Number of the epoch.
        supervised: Label tokens of each example, int32, shape (N,); None is length - 1.
        shuffle: ``full`` or ``block``; see `EpochOrder`.

    Raises:
        SamplerError: A length is below 1 or above the budget (the first is named), tables differ in
            size, or a number is out of range.
        TypeError: An argument is of a wrong type.
    """

    def __init__(
        self,
        source_id: str,
        lengths: npt.ArrayLike | LengthTable,
        options: TokenBatchOptions,
        *,
        batches_per_step: int,
        packing: str = "best_fit",
        window: int | None = None,
        seed: int | None = None,
        epoch: int = 0,
        supervised: npt.ArrayLike | None = None,
        shuffle: str = "full",
    ) -> None:
        self._source_id = text("source_id", source_id)
        self._batches_per_step = integer("batches_per_step", batches_per_step, minimum=1)
        self._packing = choice("packing", packing, PACKINGS)
        self._shuffle = choice("shuffle", shuffle, SHUFFLES)
        self._seed = optional_integer("seed", seed, minimum=0, maximum=2**64 - 1)
        check_record("options", options, TokenBatchOptions)
        self._lengths = LengthTable.of(lengths)
        self._options = options
        options.validate_lengths(self._lengths)
        self._window = checked_window(self._packing, window, self._lengths, options)
        self._supervised = checked_supervised(supervised, len(self._lengths))
        self._epoch = integer("epoch", epoch, minimum=0, maximum=2**64 - 1)
        self._order = self._order_of(self._epoch)
        self._cursor = StepCursor()
        self._repacked: tuple[CommittedPrefix, ...] = ()
        self._ahead = self._batches_from_cursor()

    @property
    def epoch(self) -> int:
        """Number of the present epoch."""
        return self._epoch

    @property
    def cursor(self) -> StepCursor:
        """The boundary after the last committed step."""
        return self._cursor

    @property
    def batches_per_step(self) -> int:
        """Batches of every step but an epoch's last."""
        return self._batches_per_step

    @property
    def options(self) -> TokenBatchOptions:
        """Budget and layout of a batch."""
        return self._options

    @property
    def window(self) -> int | None:
        """Examples of a window of best fit; None under greedy packing."""
        return self._window

    @property
    def lengths(self) -> LengthTable:
        """The shared table of lengths."""
        return self._lengths

    @property
    def finished(self) -> bool:
        """True when every example of the epoch is committed."""
        return self._cursor.position == len(self._lengths)

    def _order_of(self, epoch: int) -> EpochOrder:
        return EpochOrder(len(self._lengths), seed=self._seed, epoch=epoch, shuffle=self._shuffle)

    def _batches_from_cursor(self) -> PlannedBatches:
        cursor = self._cursor
        packer = packer_of(
            self._order,
            self._lengths,
            self._options,
            self._supervised,
            window=self._window,
            repacked=self._repacked,
            position=cursor.position,
        )
        return PlannedBatches(packer, _place(cursor))

    def steps(self, start: int, stop: int) -> tuple[StepPlan, ...]:
        """Return steps [start, stop) counted from the committed boundary; fewer at the epoch's end.

        A pure function of the committed state: asking again gives the same.

        Raises:
            SamplerError: ``start`` is negative or ``stop`` is below it.
        """
        start = integer("start", start, minimum=0)
        stop = integer("stop", stop, minimum=start)
        size = self._batches_per_step
        self._ahead.extend_to(stop * size)
        last = min(stop, math.ceil(len(self._ahead) / size))
        return tuple(self._step(k) for k in range(start, last))

    def remaining_batches(self) -> int:
        """Return how many batches the epoch has left, counted from the committed boundary."""
        return self._ahead.count()

    def _step(self, k: int) -> StepPlan:
        part = slice(k * self._batches_per_step, (k + 1) * self._batches_per_step)
        ahead = self._ahead.known
        index = self._cursor.steps + k
        return StepPlan(
            index=index,
            batches=tuple(ahead.plans[part]),
            square_sums=tuple(ahead.squares[part]),
            supervised_tokens=sum(ahead.supervised[part]),
            end=StepCursor(index + 1, *ahead.ends[part][-1]),
        )

    def commit(self, steps: int) -> None:
        """Move the committed boundary over the next ``steps`` steps.

        Raises:
            SamplerError: The epoch has fewer steps left; nothing is changed then.
        """
        steps = integer("steps", steps, minimum=0)
        if steps:
            planned = self.steps(0, steps)
            if len(planned) < steps:
                raise SamplerError(
                    f"steps must be at most {len(planned)}, what the epoch has left; got {steps}"
                )
            self.commit_to(planned[-1].end)

    def commit_to(self, end: StepCursor) -> None:
        """Move the committed boundary to the end of a step, as the step carries it; plans nothing.

        Raises:
            SamplerError: The cursor lies before the committed boundary or beyond the epoch.
        """
        check_record("end", end, StepCursor)
        now, total = self._cursor, len(self._lengths)
        if end.steps < now.steps or not _place(now) <= _place(end) <= (total, 0):
            raise SamplerError(f"end must lie between {now} and position {total}, got {end}")
        self._ahead.drop_to((end.steps - now.steps) * self._batches_per_step, _place(end))
        self._cursor = end
        if end.position != now.position:
            self._repacked = ()

    def start_epoch(self, epoch: int) -> None:
        """Begin an epoch; what is left of the present one is dropped."""
        epoch = integer("epoch", epoch, minimum=0, maximum=2**64 - 1)
        order = self._order_of(epoch)
        self._epoch, self._order = epoch, order
        self._cursor, self._repacked = StepCursor(), ()
        self._ahead = self._batches_from_cursor()

    def change(
        self, *, options: TokenBatchOptions | None = None, batches_per_step: int | None = None
    ) -> None:
        """Go on from the committed boundary with another budget or other steps.

        What is left of the present window is packed anew, all later ones under the new options; what
        is committed stays as it was, so nothing is lost or repeated.

        Args:
            options: Another budget or another limit of examples, in the same layout; None keeps them.
            batches_per_step: Batches of every later step but an epoch's last; None keeps it.

        Raises:
            SamplerError: An example is longer than the new budget, the layout is another, or one
                window was packed anew 64 times. Nothing is changed then.
        """
        size = optional_integer("batches_per_step", batches_per_step, minimum=1) or self._batches_per_step
        if options is not None and options != self._options:
            self._change_options(options)
        self._batches_per_step = size
        self._ahead = self._batches_from_cursor()

    def _change_options(self, options: TokenBatchOptions) -> None:
        check_record("options", options, TokenBatchOptions)
        check_same("the layout", self._options.layout.value, options.layout.value)
        options.validate_lengths(self._lengths)
        batches, repacked = self._cursor.batches, self._repacked
        if batches and len(repacked) == MOST_REPACKED:
            raise SamplerError(
                f"options may change {MOST_REPACKED} times in one window; go on to the next first"
            )
        if batches:
            batches, repacked = 0, (*repacked, CommittedPrefix(self._options, batches))
        elif repacked and repacked[-1].options == options:  # back to what they were, nothing between
            batches, repacked = repacked[-1].batches, repacked[:-1]
        self._cursor, self._repacked = replace(self._cursor, batches=batches), repacked
        self._options = options

    def state(self) -> StepPlannerState:
        """Return the committed continuation, the same on every rank."""
        return StepPlannerState(
            source_id=self._source_id,
            source_length=len(self._lengths),
            lengths_digest=self._lengths.digest,
            order_digest=self._order.digest(),
            options=self._options,
            batches_per_step=self._batches_per_step,
            packing=self._packing,
            window=self._window,
            seed=self._seed,
            epoch=self._epoch,
            shuffle=self._shuffle,
            cursor=self._cursor,
            repacked=self._repacked,
        )

    @classmethod
    def from_state(
        cls,
        state: StepPlannerState,
        lengths: npt.ArrayLike | LengthTable,
        options: TokenBatchOptions,
        supervised: npt.ArrayLike | None = None,
    ) -> StepPlanner:
        """Go on from a state, at any world size; see `change` for going on otherwise.

        Args:
            state: What `state` returned.
            lengths: The same length table; another one is refused by its digest.
            options: The same options.
            supervised: The source's table of label tokens, as for a new planner.

        Raises:
            SamplerError: Table, options or order are not those of the state.
        """
        check_record("state", state, StepPlannerState)
        table = LengthTable.of(lengths)
        check_same("the number of examples", state.source_length, len(table))
        check_same("the digest of the length table", state.lengths_digest, table.digest)
        check_same("options", state.options, options)
        names = ("batches_per_step", "packing", "window", "seed", "epoch", "shuffle")
        kept: dict[str, Any] = {name: getattr(state, name) for name in names}
        planner = cls(state.source_id, table, options, supervised=supervised, **kept)
        check_same("the digest of the order", state.order_digest, planner._order.digest())
        planner._cursor, planner._repacked = state.cursor, state.repacked
        planner._ahead = planner._batches_from_cursor()
        return planner


def _place(cursor: StepCursor) -> tuple[int, int]:
    return cursor.position, cursor.batches
