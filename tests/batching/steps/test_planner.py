import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.state import StepPlannerState
from raypack.batching.steps.step import StepCursor
from raypack.errors import SamplerError
from raypack.sampling.orders.epoch_order import EpochOrder
from tests.conftest import long_tailed
from tests.support.greedy_model import greedy_batches

OPTIONS = TokenBatchOptions(64)


GREEDY, BEST_FIT = {"packing": "greedy"}, {"packing": "best_fit", "window": 64}
both = pytest.mark.parametrize("packing", [GREEDY, BEST_FIT], ids=["greedy", "best_fit"])


def planner(count=300, size=4, options=OPTIONS, **more):
    more = {"seed": 7, "packing": "greedy", **more}
    return StepPlanner("source", long_tailed(count), options, batches_per_step=size, **more)


def everything(one, upto=10**6):
    return one.steps(0, upto)


def flat(steps):
    return [batch.indices.tolist() for step in steps for batch in step.batches]


@pytest.mark.parametrize("layout", list(TokenBatchLayout))
@pytest.mark.parametrize("seed", [None, 0, 5])
def test_steps_are_the_greedy_batches_of_the_order_in_groups(layout, seed):
    options = TokenBatchOptions(64, 5, layout)
    one = planner(options=options, seed=seed)
    order = EpochOrder(300, seed=seed, epoch=0).slice(0, 300)
    expected = greedy_batches(order.tolist(), long_tailed(300).tolist(), 64, 5, layout.value)
    steps = everything(one)
    assert flat(steps) == expected
    assert [len(s.batches) for s in steps[:-1]] == [4] * (len(steps) - 1)
    assert 1 <= len(steps[-1].batches) <= 4
    assert [s.index for s in steps] == list(range(len(steps)))


@both
@given(
    st.lists(st.integers(1, 20), max_size=60),
    st.integers(20, 60),
    st.integers(1, 7),
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
)
def test_any_walk_of_commits_and_restores_trains_each_example_once(packing, lengths, budget, size, walk):
    options = TokenBatchOptions(budget)
    one = StepPlanner("s", lengths, options, batches_per_step=size, seed=1, **packing)
    whole = flat(everything(one))
    assert sorted(i for batch in whole for i in batch) == list(range(len(lengths)))
    walked = []
    while not one.finished:
        for count in walk:
            steps = one.steps(0, count)
            walked += flat(steps)
            one.commit(len(steps))
            text = json.dumps(one.state().to_dict())
            one = StepPlanner.from_state(StepPlannerState.from_dict(json.loads(text)), lengths, options)
    assert walked == whole


@both
def test_steps_is_a_pure_function_of_the_committed_state(packing):
    one, other = planner(**packing), planner(**packing)
    first = other.steps(3, 6)
    other.steps(0, 20)
    assert one.steps(0, 20)[3:6] == first == other.steps(3, 6)


@both
def test_a_commit_by_the_cursor_that_a_step_carries_plans_nothing_and_goes_on_there(packing):
    one, other = planner(**packing), planner(**packing)
    steps = one.steps(0, 10)
    other.commit_to(steps[4].end)
    assert len(other._ahead) == 0
    assert other.steps(0, 5) == steps[5:]


@both
def test_an_epochs_last_step_may_be_smaller_and_ends_the_epoch(packing):
    one = planner(size=7, **packing)
    steps = everything(one)
    one.commit(len(steps))
    assert one.finished
    assert one.steps(0, 1) == ()
    assert one.cursor == StepCursor(len(steps), 300, 0)


@both
def test_committing_more_than_is_left_changes_nothing(packing):
    one = planner(**packing)
    before = one.state()
    with pytest.raises(SamplerError, match="steps must be at most"):
        one.commit(10**5)
    assert one.state() == before


@both
def test_an_empty_source_has_no_steps_and_is_finished(packing):
    one = StepPlanner("s", np.empty(0, np.int32), OPTIONS, batches_per_step=2, **packing)
    assert one.finished
    assert one.steps(0, 3) == ()


@both
def test_the_same_examples_are_in_a_step_at_any_world_size(packing):
    step = planner(size=6, **packing).steps(2, 3)[0]
    sets = set()
    for world_size in (1, 2, 3, 4, 5, 6, 7, 11):
        ranks = step.deal(world_size)
        counts = {len(rank) for rank in ranks}
        assert counts == {step.micro_batches(world_size)}
        sets.add(tuple(sorted(i for rank in ranks for plan in rank for i in plan.indices.tolist())))
    assert len(sets) == 1


@both
def test_supervised_tokens_of_a_step_come_from_the_table(packing):
    table = np.arange(300, dtype=np.int32)
    one = planner(supervised=table, **packing)
    for step in one.steps(0, 5):
        indices = np.concatenate([batch.indices for batch in step.batches])
        assert step.supervised_tokens == table[indices].sum()


@both
def test_without_a_table_a_documents_first_token_is_not_supervised(packing):
    for step in planner(**packing).steps(0, 5):
        assert step.supervised_tokens == step.real_tokens - step.examples


def test_square_sums_are_exact_for_huge_lengths():
    lengths = [2**31 - 1] * 6
    one = StepPlanner("s", lengths, TokenBatchOptions(2**33), batches_per_step=1)
    assert one.steps(0, 1)[0].square_sums == (4 * (2**31 - 1) ** 2,)


@both
def test_another_epoch_has_another_order_of_the_same_examples(packing):
    one = planner(**packing)
    first = flat(everything(one))
    one.start_epoch(1)
    second = flat(everything(one))
    assert first != second
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(300))


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        (long_tailed(299), OPTIONS, "number of examples"),
        (long_tailed(300, seed=3), OPTIONS, "digest of the length table"),
        (long_tailed(300), TokenBatchOptions(65), "options"),
    ],
)
def test_a_state_is_refused_with_another_table_or_other_options(lengths, options, message):
    with pytest.raises(SamplerError, match=message):
        StepPlanner.from_state(planner().state(), lengths, options)


@both
def test_a_state_whose_order_is_computed_otherwise_is_refused(packing):
    record = planner(**packing).state().to_dict()
    state = StepPlannerState.from_dict({**record, "order_digest": "0" * 32})
    with pytest.raises(SamplerError, match="digest of the order"):
        StepPlanner.from_state(state, long_tailed(300), OPTIONS)


@both
def test_batches_per_step_may_change_and_the_batches_stay(packing):
    one = planner(size=4, **packing)
    steps = one.steps(0, 3)
    one.commit(3)
    one.change(batches_per_step=3)
    other = StepPlanner.from_state(one.state(), long_tailed(300), OPTIONS)
    assert len(other.steps(0, 1)[0].batches) == 3
    whole = flat(steps) + flat(everything(other))
    assert whole == flat(everything(planner(size=4, **packing)))


@both
def test_remaining_batches_are_those_that_are_still_planned(packing):
    one = planner(size=4, **packing)
    while True:
        assert one.remaining_batches() == len(flat(everything(one)))
        if one.finished:
            break
        one.commit(1)


def test_under_greedy_packing_another_budget_holds_from_the_committed_boundary_on():
    one = planner(size=1)
    trained = flat(one.steps(0, 5))
    one.commit(5)
    position = one.cursor.position
    one.change(options=TokenBatchOptions(80))
    order = EpochOrder(300, seed=7, epoch=0).slice(position, 300)
    expected = greedy_batches(order.tolist(), long_tailed(300).tolist(), 80, None, "packed")
    assert flat(everything(one)) == expected
    assert sorted(sum(trained + expected, [])) == list(range(300))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batches_per_step": 0}, SamplerError, "batches_per_step must be at least 1, got 0"),
        ({"batches_per_step": True}, TypeError, "batches_per_step must be an integer, got bool"),
        ({"packing": "magic"}, SamplerError, "packing must be one of"),
        ({"packing": "greedy", "window": 5}, SamplerError, "window must be None"),
        ({"window": 0}, SamplerError, "window must be at least 1, got 0"),
        ({"shuffle": "half"}, SamplerError, "shuffle must be one of"),
        ({"seed": -1}, SamplerError, "seed must be at least 0"),
        ({"seed": 1.0}, TypeError, "seed must be an integer"),
        ({"supervised": np.ones(3, np.int32)}, SamplerError, "supervised must hold one integer"),
        ({"supervised": np.ones(300)}, SamplerError, "supervised must hold one integer"),
        ({"epoch": -1}, SamplerError, "epoch must be at least 0"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    arguments = {"batches_per_step": 2, **arguments}
    with pytest.raises(error, match=message):
        StepPlanner("source", long_tailed(300), OPTIONS, **arguments)


def test_a_document_over_the_budget_is_named():
    with pytest.raises(SamplerError, match="1"):
        StepPlanner("source", [3, 65, 70], OPTIONS, batches_per_step=1)


def test_the_plan_of_a_seed_never_changes():
    steps = planner(40, size=2, seed=2026).steps(0, 3)
    assert flat(steps) == GOLDEN
    assert [step.end.position for step in steps] == GOLDEN_ENDS


GOLDEN = [[19, 14, 9, 16, 23], [35, 5, 10], [21], [6, 17, 26, 34], [36, 30, 39, 1], [2, 29, 0, 25]]
GOLDEN_ENDS = [8, 13, 21]
