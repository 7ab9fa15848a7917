"""The global plan: an epoch's order, packed into batches, grouped into optimizer steps.

Planned for all ranks together and dealt afterwards, so step k trains the same examples at any world
size, and its state knows nothing of ranks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from raypack.arguments import choice, integer, optional_integer, shown, text
from raypack.batching.greedy_batches import GreedyBatches
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchOptions
from raypack.batching.step_plan import StepCursor, StepPlan
from raypack.batching.step_state import PACKINGS, SHUFFLES, StepPlannerState
from raypack.errors import SamplerError
from raypack.sampling.order import EpochOrder


class StepPlanner:
    """Plans the global order of an epoch into optimizer steps.

    Args:
        source_id: The caller's name of the immutable source (a fingerprint, say).
        lengths: Length of each example in tokens, int32, shape (N,); an array or a `LengthTable`.
        options: Budget and layout of a batch.
        batches_per_step: Batches of every step but an epoch's last.
        packing: ``greedy``: the longest prefix of the order that fits, nothing pulled forward.
        window: Reserved for packings that work window by window; must be None for ``greedy``.
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
        packing: str = "greedy",
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
        if window is not None:
            raise SamplerError(f"window must be None under greedy packing, got {shown(window)}")
        if not isinstance(options, TokenBatchOptions):
            raise TypeError(f"options must be TokenBatchOptions, got {type(options).__name__}")
        self._lengths = LengthTable.of(lengths)
        self._options = options
        options.validate_lengths(self._lengths)
        self._supervised = _supervised_table(supervised, len(self._lengths))
        self._epoch = integer("epoch", epoch, minimum=0, maximum=2**64 - 1)
        self._order = self._order_of(self._epoch)
        self._cursor = StepCursor()
        self._ahead = self._batches_from(0)

    # -- what it is ------------------------------------------------------------------------------

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
    def lengths(self) -> LengthTable:
        """The shared table of lengths."""
        return self._lengths

    @property
    def finished(self) -> bool:
        """True when every example of the epoch is committed."""
        return self._cursor.position == len(self._lengths)

    def _order_of(self, epoch: int) -> EpochOrder:
        return EpochOrder(len(self._lengths), seed=self._seed, epoch=epoch, shuffle=self._shuffle)

    def _batches_from(self, position: int) -> GreedyBatches:
        return GreedyBatches(self._order, self._lengths, self._options, self._supervised, position)

    # -- planning --------------------------------------------------------------------------------

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
        last = min(stop, math.ceil(len(self._ahead.plans) / size))
        return tuple(self._step(k) for k in range(start, last))

    def _step(self, k: int) -> StepPlan:
        part = slice(k * self._batches_per_step, (k + 1) * self._batches_per_step)
        ahead = self._ahead
        index = self._cursor.steps + k
        return StepPlan(
            index=index,
            batches=tuple(ahead.plans[part]),
            square_sums=tuple(ahead.squares[part]),
            supervised_tokens=sum(ahead.supervised[part]),
            end=StepCursor(index + 1, ahead.ends[part][-1], 0),
        )

    # -- progress --------------------------------------------------------------------------------

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
        """Move the committed boundary to the end of a step, as the step carries it.

        Plans nothing: the cursor comes from this planner or an equal one.

        Raises:
            SamplerError: The cursor lies before the committed boundary or beyond the epoch.
        """
        if not isinstance(end, StepCursor):
            raise TypeError(f"end must be a StepCursor, got {type(end).__name__}")
        now, total = self._cursor, len(self._lengths)
        if end.steps < now.steps or not now.position <= end.position <= total or end.batches:
            raise SamplerError(f"end must lie between {now} and position {total}, got {end}")
        count = (end.steps - now.steps) * self._batches_per_step
        self._ahead.drop_to(count, end.position)
        self._cursor = end

    def start_epoch(self, epoch: int) -> None:
        """Begin an epoch; what is left of the present one is dropped."""
        epoch = integer("epoch", epoch, minimum=0, maximum=2**64 - 1)
        order = self._order_of(epoch)
        self._epoch, self._order, self._cursor = epoch, order, StepCursor()
        self._ahead = self._batches_from(0)

    # -- state -----------------------------------------------------------------------------------

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
            seed=self._seed,
            epoch=self._epoch,
            shuffle=self._shuffle,
            cursor=self._cursor,
        )

    @classmethod
    def from_state(
        cls,
        state: StepPlannerState,
        lengths: npt.ArrayLike | LengthTable,
        options: TokenBatchOptions,
        supervised: npt.ArrayLike | None = None,
        *,
        batches_per_step: int | None = None,
    ) -> StepPlanner:
        """Go on from a state, at any world size.

        Args:
            state: What `state` returned.
            lengths: The same length table; another one is refused by its digest.
            options: The same options.
            supervised: The source's table of label tokens, as for a new planner.
            batches_per_step: Another number of batches a step from here on; None keeps the state's.

        Raises:
            SamplerError: Table, options or order are not those of the state.
        """
        if not isinstance(state, StepPlannerState):
            raise TypeError(f"state must be a StepPlannerState, got {type(state).__name__}")
        table = LengthTable.of(lengths)
        _same("the number of examples", state.source_length, len(table))
        _same("the digest of the length table", state.lengths_digest, table.digest)
        _same("options", state.options, options)
        kept: dict[str, Any] = {
            name: getattr(state, name) for name in ("packing", "seed", "epoch", "shuffle")
        }
        size = state.batches_per_step if batches_per_step is None else batches_per_step
        planner = cls(state.source_id, table, options, batches_per_step=size, supervised=supervised, **kept)
        _same("the digest of the order", state.order_digest, planner._order.digest())
        planner._cursor = state.cursor
        planner._ahead = planner._batches_from(state.cursor.position)
        return planner


def _same(what: str, recorded: object, present: object) -> None:
    if recorded != present:
        raise SamplerError(
            f"{what} must be what the state records, {shown(recorded)}; got {shown(present)}: "
            "resume with the source and options that the run began with"
        )


def _supervised_table(supervised: npt.ArrayLike | None, count: int) -> npt.NDArray[Any] | None:
    if supervised is None:
        return None
    table = np.asarray(supervised)
    if table.dtype.kind not in "iu" or table.shape != (count,):
        raise SamplerError(
            f"supervised must hold one integer an example, shape ({count},); "
            f"got {table.dtype} of shape {table.shape}"
        )
    return table
