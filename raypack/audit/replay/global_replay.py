"""Plans an epoch of the global deal again and compares it with the receipt of what was trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from raypack.audit.replay.stretches import Stretch
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchOptions
from raypack.batching.plan import TokenBatchPlan
from raypack.batching.steps.planner import StepPlanner
from raypack.errors import CheckpointError
from raypack.sampling.receipt import Receipt, index_hashes

_BATCHES_AT_ONCE = 4_096
_EXAMPLES_AT_ONCE = 1 << 24
_SEARCHED_AT_ONCE = 1 << 17


@dataclass(slots=True)
class Replay:
    """The plan of an epoch's first steps, added up.

    Holds a bit for each example of the source and three numbers a batch, no lists of examples.
    """

    key: int
    """Key of the epoch's receipts."""
    bits: npt.NDArray[np.uint8]
    """A bit for each example of the source: those of the plan are set."""
    receipt: Receipt = field(default_factory=Receipt)
    steps: int = 0
    doubled: int = 0
    """Examples that the plan itself holds twice; 0, or the planner is broken."""
    hashes: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    sizes: list[npt.NDArray[np.int64]] = field(default_factory=list)
    in_steps: list[npt.NDArray[np.int64]] = field(default_factory=list)
    slots: int = 0
    """Budgets of all batches, tokens."""

    @classmethod
    def of(cls, source_length: int, key: int) -> Replay:
        """Return an empty replay of a source."""
        return cls(key, np.zeros(-(-source_length // 8), np.uint8))

    @property
    def seen(self) -> int:
        """Examples that the plan holds."""
        return self.receipt.examples - self.doubled

    def add(self, plans: Sequence[TokenBatchPlan], steps: npt.NDArray[np.int64], budget: int) -> None:
        """Add batches, planned under a budget.

        Args:
            plans: The batches, one or more.
            steps: (batches,) number in the epoch of the step that each is of.
            budget: Tokens of a batch at the most.
        """
        from raypack.audit.kernels.marks import mark

        sizes = np.array([len(plan.indices) for plan in plans], np.int64)
        indices = np.concatenate([plan.indices for plan in plans])
        hashes = np.add.reduceat(index_hashes(self.key, indices), np.cumsum(sizes) - sizes)
        again, outside = mark(self.bits, indices)
        if outside >= 0:
            raise CheckpointError(f"the plan holds example {indices[outside]}, which the source has not")
        self.doubled += again
        tokens = sum(plan.real_tokens for plan in plans)
        self.receipt += Receipt(len(indices), tokens, int(np.sum(hashes, dtype=np.uint64)))
        self.hashes.append(hashes)
        self.sizes.append(sizes)
        self.in_steps.append(steps)
        self.slots += budget * len(plans)


def at_once(options: TokenBatchOptions, lengths: LengthTable) -> int:
    """Return how many batches to plan at once, so that they hold a bounded number of examples."""
    return max(1, min(_BATCHES_AT_ONCE, _EXAMPLES_AT_ONCE // most_examples(options, len(lengths))))


def most_examples(options: TokenBatchOptions, source_length: int) -> int:
    """Return how many examples of a source a batch can hold at the most: each has a token."""
    most = options.maximum_examples or options.maximum_tokens
    return max(1, min(options.maximum_tokens, most, source_length))


def replay_global(planner: StepPlanner, stretches: Iterable[Stretch], replay: Replay) -> None:
    """Plan the steps of an epoch, one attempt after another, under the budget that each had.

    Args:
        planner: A planner at the epoch's start; it is moved on, in steps of its own that count for nothing.
        stretches: The steps of the epoch, by attempt.
        replay: Where they are added; it ends early where the plan does.
    """
    for stretch in stretches:
        attempt = stretch.attempt
        size = attempt.batches_per_step
        if planner.options != attempt.options:
            planner.change(options=attempt.options)
        done = 0
        for plans in _batches(planner, stretch.steps, size):
            steps = replay.steps + np.arange(done, done + len(plans)) // size
            replay.add(plans, steps, attempt.options.maximum_tokens)
            done += len(plans)
        replay.steps += -(-done // size)


def _batches(planner: StepPlanner, steps: int, size: int) -> Iterator[list[TokenBatchPlan]]:
    """Give the batches of some steps, a bounded number at once; fewer where the epoch ends."""
    most = at_once(planner.options, planner.lengths)
    part = next(number for number in range(min(most, size), 0, -1) if size % number == 0)
    if planner.batches_per_step != part:
        planner.change(batches_per_step=part)
    left = steps * (size // part)
    while left and (planned := planner.steps(0, min(left, max(1, most // part)))):
        yield [plan for step in planned for plan in step.batches]
        planner.commit_to(planned[-1].end)
        left -= len(planned)


def explain(result: Replay, trained: Receipt) -> str:
    """Say which examples were lost or duplicated, where the difference of the hashes identifies them.

    One example, one batch or one batch in place of another can be identified; more cannot, and the
    answer then gives the counts alone.
    """
    planned = result.receipt
    counts = (
        f"planned {planned.examples} examples of {planned.tokens} tokens, trained {trained.examples} of "
        f"{trained.tokens}"
    )
    lost = (planned.hash - trained.hash) % 2**64
    hashes, sizes, steps = (_joined(part) for part in (result.hashes, result.sizes, result.in_steps))
    for verb, difference, size in (
        ("was not trained", lost, planned.examples - trained.examples),
        ("was trained twice", -lost % 2**64, trained.examples - planned.examples),
    ):
        if size == 1 and (example := _example(result, difference)) is not None:
            return f"example {example} {verb}; {counts}"
        found = np.flatnonzero((hashes == np.uint64(difference)) & (sizes == size))
        if len(found):
            return f"a batch of step {steps[found[0]]} ({size} examples) {verb}; {counts}"
    if (pair := _swapped(hashes, lost)) is not None:
        missing, doubled = (steps[batch] for batch in pair)
        return f"a batch of step {missing} was not trained, one of step {doubled} twice; {counts}"
    return counts


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _example(result: Replay, difference: int) -> int | None:
    for start in range(0, len(result.bits), _SEARCHED_AT_ONCE):
        bits = np.unpackbits(result.bits[start : start + _SEARCHED_AT_ONCE], bitorder="little")
        indices = np.flatnonzero(bits) + 8 * start
        found = np.flatnonzero(index_hashes(result.key, indices) == np.uint64(difference))
        if len(found):
            return int(indices[found[0]])
    return None


def _swapped(hashes: npt.NDArray[np.uint64], lost: int) -> tuple[int, int] | None:
    """Return (missing, doubled) batches whose hashes differ by ``lost``, if there are such."""
    if lost == 0 or not len(hashes):
        return None
    order = np.argsort(hashes)
    wanted = hashes + np.uint64(lost)  # hash of the missing one, for each that may be doubled
    at = np.minimum(np.searchsorted(hashes[order], wanted), len(hashes) - 1)
    found = np.flatnonzero(hashes[order][at] == wanted)
    return (int(order[at[found[0]]]), int(found[0])) if len(found) else None
