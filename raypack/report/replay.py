"""Plan an epoch again and compare what it must have trained with what was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyroaring import BitMap, BitMap64

from raypack.batching.options import TokenBatchOptions
from raypack.batching.plan import TokenBatchPlan
from raypack.batching.step_plan import StepPlan
from raypack.batching.step_planner import StepPlanner
from raypack.sampling.receipt import Receipt, index_hashes, receipt_key
from raypack.train.ledger import Attempt

_STEPS_AT_ONCE = 64


@dataclass(slots=True)
class Replay:
    """The plan of an epoch's first steps, added up.

    Holds a compressed bitmap of the examples and a hash a batch, no lists of examples.
    """

    receipt: Receipt = field(default_factory=Receipt)
    steps: int = 0
    doubled: int = 0
    """Examples that the plan itself holds twice; 0, or the planner is broken."""
    seen: Any = field(default_factory=BitMap)
    batch_hashes: list[int] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    batch_steps: list[int] = field(default_factory=list)
    slots: int = 0
    """Budgets of all batches, tokens."""

    @classmethod
    def of(cls, source_length: int) -> Replay:
        """Return an empty replay of a source."""
        return cls(seen=BitMap() if source_length < 2**32 else BitMap64())

    def add(self, key: int, step: int, plan: TokenBatchPlan, budget: int) -> None:
        """Add a batch of a step, planned under a budget."""
        indices = plan.indices
        receipt = Receipt.of(key, indices, plan.real_tokens)
        before = len(self.seen)
        self.seen.update(indices.tolist())
        self.doubled += before + len(indices) - len(self.seen)
        self.receipt += receipt
        self.batch_hashes.append(receipt.hash)
        self.batch_sizes.append(len(indices))
        self.batch_steps.append(step)
        self.slots += budget


def replay_global(planner: StepPlanner, source_id: str, attempts: Sequence[Attempt]) -> list[Replay]:
    """Plan the steps of all attempts, one after another, under the budget that each had.

    Args:
        planner: A planner at the start of the run; it is moved on.
        source_id: The source's fingerprint.
        attempts: The ledger's attempts.

    Returns:
        The replay of each epoch that a step was trained of; it ends early where the plan does.
    """
    total = len(planner.lengths)
    epochs = [Replay.of(total)]
    for attempt in attempts:
        planner.change(options=attempt.options, batches_per_step=attempt.batches_per_step)
        left = attempt.steps
        while left:
            if planner.finished:
                if not total:
                    return epochs
                planner.start_epoch(planner.epoch + 1)
                epochs.append(Replay.of(total))
            planned = planner.steps(0, min(_STEPS_AT_ONCE, left))
            _add_steps(epochs[-1], planned, receipt_key(source_id, planner.epoch), planner.options)
            planner.commit_to(planned[-1].end)
            left -= len(planned)
    return epochs


def _add_steps(replay: Replay, planned: Sequence[StepPlan], key: int, options: TokenBatchOptions) -> None:
    for step in planned:
        for plan in step.batches:
            replay.add(key, step.index, plan, options.maximum_tokens)
    replay.steps += len(planned)


def explain(result: Replay, trained: Receipt, key: int) -> str:
    """Say which examples were lost or doubled, where the difference of the hashes tells.

    One example, one batch or one batch in place of another can be told; more cannot, and the
    answer then gives the counts alone.
    """
    planned = result.receipt
    counts = (
        f"planned {planned.examples} examples of {planned.tokens} tokens, trained {trained.examples} of "
        f"{trained.tokens}"
    )
    lost = (planned.hash - trained.hash) % 2**64
    for verb, difference, size in (
        ("was not trained", lost, planned.examples - trained.examples),
        ("was trained twice", -lost % 2**64, trained.examples - planned.examples),
    ):
        if size == 1 and (example := _example(result, key, difference)) is not None:
            return f"example {example} {verb}; {counts}"
        if (batch := _batch(result, difference, size)) is not None:
            return f"a batch of step {result.batch_steps[batch]} ({size} examples) {verb}; {counts}"
    if (pair := _swapped(result, lost)) is not None:
        missing, doubled = (result.batch_steps[batch] for batch in pair)
        return f"a batch of step {missing} was not trained, one of step {doubled} twice; {counts}"
    return counts


def _example(result: Replay, key: int, difference: int) -> int | None:
    indices = np.fromiter(result.seen, np.int64, len(result.seen))
    found = np.flatnonzero(index_hashes(key, indices) == np.uint64(difference))
    return int(indices[found[0]]) if len(found) else None


def _batch(result: Replay, difference: int, size: int) -> int | None:
    hashes = np.array(result.batch_hashes, np.uint64)
    sizes = np.array(result.batch_sizes, np.int64)
    found = np.flatnonzero((hashes == np.uint64(difference)) & (sizes == size))
    return int(found[0]) if len(found) else None


def _swapped(result: Replay, lost: int) -> tuple[int, int] | None:
    """Return (missing, doubled) batches whose hashes differ by ``lost``, if there are such."""
    hashes = np.array(result.batch_hashes, np.uint64)
    if not len(hashes):
        return None
    order = np.argsort(hashes)
    wanted = hashes + np.uint64(lost)  # hash of the missing one, for each that may be doubled
    at = np.minimum(np.searchsorted(hashes[order], wanted), len(hashes) - 1)
    found = np.flatnonzero(hashes[order][at] == wanted)
    if lost == 0 or not len(found):
        return None
    return int(order[at[found[0]]]), int(found[0])
