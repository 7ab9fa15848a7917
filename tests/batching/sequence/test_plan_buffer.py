import numpy as np
import pytest

from raypack.batching.options import TokenBatchOptions
from raypack.batching.sequence.global_steps import GlobalSteps
from raypack.batching.sequence.plan_block import RowMeta
from raypack.batching.sequence.plan_buffer import PlanBuffer
from raypack.batching.steps.assignment import AttentionCost
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.step import StepCursor
from tests.conftest import long_tailed

COUNT, SIZE = 200, 5


def planner(count=COUNT):
    return StepPlanner("s", long_tailed(count), TokenBatchOptions(64), batches_per_step=SIZE, seed=3)


def addressed(world_size=2, epochs=2, count=COUNT):
    steps = GlobalSteps(planner(count), world_size=world_size, epochs=epochs, attention_cost=AttentionCost())
    return PlanBuffer(steps)


def rows(block):
    """Return (meta, indices) of each row."""
    at = np.concatenate([[0], np.cumsum(block.counts)])
    return [
        (RowMeta(*block.meta[k].tolist()), block.indices[at[k] : at[k + 1]].tolist())
        for k in range(len(block))
    ]


def whole_run(plans, rank, size=7):
    out, first = [], 0
    while True:
        block = plans.block(rank, first, size)
        out += rows(block)
        first += len(block)
        if len(block) < size:
            return out


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_the_ranks_together_get_each_example_once_an_epoch(world_size):
    plans = addressed(world_size)
    ranks = [whole_run(plans, rank) for rank in range(world_size)]
    assert len({len(rank) for rank in ranks}) == 1
    for epoch in (0, 1):
        got = [i for rank in ranks for meta, indices in rank if meta.epoch == epoch for i in indices]
        assert sorted(got) == list(range(COUNT))


def test_all_ranks_stand_at_the_same_step_and_micro_batch_at_every_address():
    plans = addressed(3)
    places = [[meta[:4] for meta, _ in whole_run(plans, rank)] for rank in range(3)]
    assert places[0] == places[1] == places[2]


def test_a_block_does_not_depend_on_what_was_asked_before():
    forward, backward = addressed(), addressed()
    blocks = [rows(forward.block(1, first, 4)) for first in range(0, 40, 4)]
    again = [rows(backward.block(1, first, 4)) for first in reversed(range(0, 40, 4))]
    assert blocks == again[::-1]


def test_what_is_committed_is_forgotten_and_comes_back_as_gone_rows():
    plans = addressed(2)
    step = planner().steps(0, 3)[2]
    first = sum(s.micro_batches(2) for s in planner().steps(0, 3))
    kept = rows(plans.block(0, 0, 40))
    plans.move_to(first, 0, step.end)
    assert plans.floor == first
    block = plans.block(0, first - 2, 6)
    assert block.num_expired == 2
    assert block.counts[:2].tolist() == [0, 0]
    assert rows(block)[2:] == kept[first : first + 4]


def test_a_planner_that_began_again_goes_on_where_it_is_told():
    plans, fresh = addressed(2), addressed(2)
    steps = planner().steps(0, 4)
    first = sum(s.micro_batches(2) for s in steps)
    expected = rows(plans.block(1, first, 20))
    fresh.move_to(first, 0, steps[-1].end)
    assert rows(fresh.block(1, first, 20)) == expected


def test_a_planner_that_began_again_in_the_second_epoch_goes_on_there():
    plans, fresh = addressed(2), addressed(2)
    run = whole_run(plans, 0)
    first = next(k for k, (meta, _) in enumerate(run) if meta.epoch == 1 and meta.step == 2)
    other = planner()
    other.start_epoch(1)
    fresh.move_to(first, 1, other.steps(0, 2)[-1].end)
    assert whole_run(fresh, 0)[:0] == []
    assert rows(fresh.block(0, first, 10)) == run[first : first + 10]


def test_the_run_ends_after_its_last_epoch():
    plans = addressed(1, epochs=1)
    length = len(whole_run(plans, 0))
    assert len(plans.block(0, length, 5)) == 0
    assert len(plans.block(0, length - 2, 5)) == 2


def test_an_empty_source_ends_at_once():
    assert len(addressed(2, count=0).block(0, 0, 5)) == 0


def test_a_late_commit_changes_nothing():
    plans = addressed(2)
    plans.block(0, 0, 30)
    plans.move_to(9, 0, planner().steps(0, 3)[2].end)
    before = rows(plans.block(0, 9, 10))
    plans.move_to(3, 0, StepCursor(1, 5, 0))
    assert rows(plans.block(0, 9, 10)) == before


def test_a_run_that_now_has_fewer_epochs_than_it_has_begun_ends_at_once():
    later = planner()
    later.start_epoch(1)
    later.commit(3)
    plans = PlanBuffer(GlobalSteps(later, world_size=2, epochs=1, attention_cost=AttentionCost()))
    assert len(plans.block(0, 0, 5)) == 0
