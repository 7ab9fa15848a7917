"""The tally of a rank: however many steps are hashed at once, it is their sum."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raypack.sampling.receipt import Receipt, receipt_key
from raypack.train.receipt_accumulator import ReceiptAccumulator, TrainedBatch, TrainedStep, entry_of

BATCHES = st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=4), st.booleans()), min_size=1)
STEPS = st.lists(st.tuples(BATCHES, st.integers(0, 1), st.booleans(), st.booleans()), max_size=60)


def steps_of(drawn):
    epoch, steps = 0, []
    for number, (batches, retries, skipped, turns) in enumerate(drawn):
        epoch += turns
        made = tuple(
            TrainedBatch(np.array(indices, np.int64), 3 * len(indices), observed)
            for indices, observed in batches
        )
        steps.append(TrainedStep(number, epoch, made, retries, skipped))
    return steps


def added_up(steps):
    """Add the entries of steps one by one, and their receipts batch by batch."""
    entries = {}
    for step in steps:
        key, receipt = receipt_key("s", step.epoch), Receipt()
        for batch in step.batches:
            receipt += Receipt.of(key, batch.indices, batch.tokens)
        entry = entry_of(key, [step])
        assert (entry.refused.receipt if step.skipped else entry.receipt) == receipt
        held = [batch.observed for batch in step.batches if len(batch.indices) and not step.skipped]
        assert (entry.batches, entry.observed) == (len(held), sum(held))
        known = entries.get(step.epoch)
        entries[step.epoch] = entry if known is None else known + entry
    return [entries[epoch] for epoch in sorted(entries)]


@given(drawn=STEPS, asked=st.sets(st.integers(0, 59)))
@settings(max_examples=40, deadline=None)
def test_a_tally_is_the_sum_of_its_steps_whenever_it_is_asked_for(drawn, asked):
    steps, accumulator = steps_of(drawn), ReceiptAccumulator("s")
    for number, step in enumerate(steps):
        accumulator.add(step)
        assert accumulator.steps == number + 1
        if number in asked:
            assert accumulator.entries() == added_up(steps[: number + 1])
    assert accumulator.entries() == added_up(steps)


def test_indices_wait_for_64_batches_and_no_longer():
    accumulator, batch = ReceiptAccumulator("s"), TrainedBatch(np.arange(3), 9)
    for number in range(63):
        accumulator.add(TrainedStep(number, 0, (batch,), 0, False))
    assert len(accumulator._waiting) == 63
    accumulator.add(TrainedStep(63, 0, (batch,), 0, False))
    assert accumulator._waiting == []
    assert [(entry.steps, entry.receipt.examples) for entry in accumulator.entries()] == [(64, 192)]
