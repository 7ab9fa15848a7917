"""The rank deal in the train process: each rank has its own shard and batches, synchronised once a step.

Ranks may have different numbers of batches, and nothing is counted in advance: before each step the
ranks add up who still has examples of the epoch, and those that have none take part with empty
micro-batches until no rank has any. Tensor- and pipeline-parallel peers have the same shard, sampler and
batches, each for itself, and are counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.batching.sequence.rank_steps import commit_examples
from raypack.batching.steps.step import StepCursor
from raypack.errors import StreamError
from raypack.train.counting import uncountable
from raypack.train.deals.deal import StepFacts, ended_early
from raypack.train.deals.rows import Rows

if TYPE_CHECKING:
    from raypack.checkpoint.ledger import Attempt
    from raypack.source import ArrowSource
    from raypack.train.recipe import PackedData

AllReduce = Callable[[list[int]], list[int]]
"""Adds integers up over all data ranks; every process calls it once a step."""


class RankDeal:
    """A data rank's own sampler, moved on as its steps are committed.

    Args:
        sampler: This data rank's sampler where the attempt begins.
        micros: Micro-batches of a step on every rank.
        batches_per_step: Batches of a step over all ranks, as the run records it.
        steps: Steps of the epoch before the attempt.
        epochs: Epochs of the run.
        agree: Adds integers up over all data ranks; see `dedupe_peers`.
    """

    kind = "rank"

    def __init__(
        self,
        sampler: StatefulTokenBatchSampler,
        *,
        micros: int,
        batches_per_step: int,
        steps: int,
        epochs: int,
        agree: AllReduce,
    ) -> None:
        self._sampler = sampler
        self._micros = micros
        self._batches_per_step = batches_per_step
        self._steps = steps
        self._epochs = epochs
        self._agree = agree
        self._before: tuple[dict[str, Any], dict[str, Any] | None] | None = None

    @property
    def epoch(self) -> int:
        """Number of the present epoch."""
        return self._sampler.sampler.epoch

    @property
    def cursor(self) -> StepCursor:
        """The boundary after the last committed step: steps, and examples of this rank's shard."""
        return StepCursor(self._steps, self._sampler.sampler.committed, 0)

    @property
    def batches_per_step(self) -> int:
        """Batches of a step over all ranks, as the run records it."""
        return self._batches_per_step

    def count_steps(
        self, recipe: PackedData, source: ArrowSource, attempts: Sequence[Attempt], done: int
    ) -> int:
        """Refuse: how many steps are left depends on the workers to come."""
        raise uncountable()

    def begin(self, rows: Rows) -> StepFacts | None:
        """Return the next step that all ranks train together, or None at the end of the run.

        Raises:
            StreamError: The stream gives another step than comes next, or ended before the run.
        """
        while self.epoch < self._epochs:
            row = rows.peek()
            own = None if row is None or row.meta.epoch != self.epoch else row.meta
            mine = [0, 0, 0, 0]
            if own is None and self._sampler.sampler.remaining:
                raise ended_early(self.epoch, self._steps)
            if own is not None:
                mine = [1, own.step_batches, own.step_tokens, own.step_supervised]
            active, batches, tokens, supervised = self._agree(mine)
            if active:
                break
            if self.epoch + 1 >= self._epochs:
                return None
            self._before = self.plan(), self.own()  # the state until a step of the new epoch is committed
            self._sampler.start_epoch(self.epoch + 1)
            self._steps = 0
        else:
            return None  # the run now has fewer epochs than it has begun
        end = self.cursor.position
        if own is not None:
            if (own.step, own.micro) != (self._steps, 0):
                raise StreamError(
                    f"step {self._steps} of epoch {self.epoch} must come next, got micro-batch "
                    f"{own.micro} of step {own.step}"
                )
            end = own.end_position
        return StepFacts(
            epoch=self.epoch,
            step=self._steps,
            micros=self._micros,
            rows=self._micros if own is not None else 0,
            batches=batches,
            tokens=tokens,
            supervised=supervised,
            end=StepCursor(self._steps + 1, end, 0),
        )

    def commit(self, facts: StepFacts) -> None:
        """Advance past a step that was trained."""
        commit_examples(self._sampler, facts.end.position - self._sampler.sampler.committed)
        self._steps = facts.end.steps
        self._before = None

    def shared(self) -> Any:
        """Return epoch and steps: all that ranks have in common."""
        return [*self.plan().values()]

    def plan(self) -> dict[str, Any]:
        """Return epoch, steps and batches a step, after the last commit."""
        if self._before is not None:
            return self._before[0]
        return {"epoch": self.epoch, "steps": self._steps, "batches_per_step": self._batches_per_step}

    def own(self) -> dict[str, Any] | None:
        """Return the state of the sampler after the last commit, the same on all peers of the data rank."""
        return self._sampler.state().to_dict() if self._before is None else self._before[1]


def dedupe_peers(add: AllReduce, *, is_first_peer: bool) -> AllReduce:
    """Return an agreement that counts each data rank once, where several processes share one.

    All processes take part, so that none goes ahead of its peers; those that are not the first of their
    data rank add nothing.

    Args:
        add: Adds integers up over all processes.
        is_first_peer: Whether this process is the first of its data rank.
    """
    return add if is_first_peer else lambda values: add([0] * len(values))


def add_up(values: list[int], device: torch.device) -> list[int]:
    """Add integers up over the processes of the default process group."""
    total = torch.tensor(values, dtype=torch.int64, device=device)
    torch.distributed.all_reduce(total)
    return [int(value) for value in total.tolist()]
