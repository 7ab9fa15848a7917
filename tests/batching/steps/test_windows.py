import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching.best_fit import best_fit_bins
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.steps.background import Background
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.step import StepCursor
from raypack.batching.steps.windows import LARGEST_WINDOW, window_of
from raypack.errors import SamplerError
from raypack.sampling.orders.epoch_order import EpochOrder
from tests.conftest import long_tailed

OPTIONS = TokenBatchOptions(64)


def planner(count=300, size=4, options=OPTIONS, window=64, **more):
    more = {"seed": 7, **more}
    return StepPlanner("source", long_tailed(count), options, batches_per_step=size, window=window, **more)


def batches_of(steps):
    return [batch.indices.tolist() for step in steps for batch in step.batches]


def flat(batches):
    return [index for batch in batches for index in batch]


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("layout", list(TokenBatchLayout))
def test_each_window_holds_its_own_extent_of_the_order_in_best_fit_bins(layout, seed):
    options = TokenBatchOptions(64, None, layout)
    lengths = long_tailed(300)
    batches = batches_of(planner(seed=seed, options=options).steps(0, 1000))
    order = EpochOrder(300, seed=seed).slice(0, 300)
    for first in range(0, 300, 64):
        extent = order[first : first + 64]
        bins, count = best_fit_bins(lengths[extent].astype(np.int32), options)
        expected = {tuple(extent[bins == number].tolist()) for number in range(count)}
        mine, batches = batches[:count], batches[count:]
        assert set(map(tuple, mine)) == expected
    assert not batches


def test_steps_have_their_full_number_of_batches_across_the_ends_of_windows():
    steps = planner(size=7).steps(0, 1000)
    assert {len(step.batches) for step in steps[:-1]} == {7}
    assert sorted(flat(batches_of(steps))) == list(range(300))
    crossing = [step for step in steps[:-1] if step.end.batches < 7]
    assert crossing


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 128])
def test_a_window_that_ends_with_the_epoch_loses_and_repeats_nothing(count):
    one = planner(count=count)
    steps = one.steps(0, 1000)
    assert sorted(flat(batches_of(steps))) == list(range(count))
    one.commit(len(steps))
    assert one.finished
    assert one.cursor == StepCursor(len(steps), count, 0)


def test_the_batches_of_long_documents_do_not_come_first():
    lengths = long_tailed(16_384, high=256)
    one = StepPlanner("s", lengths, TokenBatchOptions(256), batches_per_step=16, seed=3, window=16_384)
    steps = one.steps(0, 1000)
    means = np.array([step.real_tokens / step.examples for step in steps[:-1]])
    drift = np.corrcoef(np.arange(len(means)), means)[0, 1]
    assert abs(drift) < 3 / np.sqrt(len(means))  # three standard deviations of unrelated values
    packed = np.sort(means)
    assert np.corrcoef(np.arange(len(means)), packed)[0, 1] > 0.9  # what would be seen were they bunched


def test_in_source_order_batches_come_by_their_first_example():
    batches = batches_of(planner(seed=None, window=100).steps(0, 1000))
    for first in range(0, 300, 100):
        starts = [batch[0] for batch in batches if first <= batch[0] < first + 100]
        assert starts == sorted(starts)
    assert all(batch == sorted(batch) for batch in batches)


@pytest.mark.parametrize("budget", [4096, 16_384])
def test_a_lognormal_mix_is_packed_to_99_9_percent_at_the_default_window(budget):
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(np.log(400), 0.8, 150_000), 1, budget).astype(np.int32)
    one = StepPlanner("s", lengths, TokenBatchOptions(budget), batches_per_step=64, seed=3)
    steps = one.steps(0, 2 * one.window // (2000 // 64))
    used = sum(step.real_tokens for step in steps) / sum(len(step.batches) * budget for step in steps)
    assert used >= 0.999


@pytest.mark.parametrize(
    ("mean", "budget", "expected"),
    [
        (549, 4096, 16_384),
        (549, 16_384, 65_536),
        (1, 10**12, LARGEST_WINDOW),
        (100, 100, 2048),
        (125, 64, 1024),
    ],
)
def test_the_default_window_is_the_power_of_two_that_holds_2000_budgets(mean, budget, expected):
    window = window_of(LengthTable.of(np.full(10, mean, np.int32)), TokenBatchOptions(budget))
    assert window == expected
    assert window == LARGEST_WINDOW or window * mean >= 2000 * budget > window * mean // 2


def test_the_window_is_recorded_so_a_table_of_another_mean_does_not_change_it():
    one = planner(window=None)
    assert one.state().window == one.window == window_of(one.lengths, OPTIONS)


def test_what_is_planned_in_the_background_is_what_is_planned_when_asked():
    ahead = planner(window=32)
    for _ in range(30):
        steps = ahead.steps(0, 1)
        fresh = StepPlanner.from_state(ahead.state(), long_tailed(300), OPTIONS)
        assert fresh.steps(0, 3)[:1] == steps
        ahead.commit(len(steps))


def test_background_gives_the_error_of_the_function_to_who_asks_and_leaves_no_thread():
    def function(key):
        raise SamplerError(f"no {key}")

    background = Background(function)
    background.begin(5)
    with pytest.raises(SamplerError, match="no 5"):
        background.get(5)
    assert not [thread for thread in threading.enumerate() if thread.name == "raypack-plan"]


def test_background_computes_what_was_not_begun():
    background = Background(lambda key: key * 2)
    background.begin(1)
    assert background.get(3) == 6
    assert background.get(1) == 2
    assert background.get(1) == 2


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=60),
    st.integers(1, 5),
    st.integers(1, 40),
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(20, 60), st.none() | st.integers(1, 5), st.integers(1, 5)),
        max_size=6,
    ),
    st.sampled_from(list(TokenBatchLayout)),
)
def test_changes_of_budget_and_step_in_mid_window_lose_and_repeat_nothing(
    lengths, size, window, changes, layout
):
    options = TokenBatchOptions(30, None, layout)
    one = StepPlanner("s", lengths, options, batches_per_step=size, seed=1, window=window)
    trained = []
    for steps, budget, most, size in changes:
        planned = one.steps(0, steps)
        trained += batches_of(planned)
        one.commit(len(planned))
        one.change(options=TokenBatchOptions(budget, most, layout), batches_per_step=size)
        one = StepPlanner.from_state(one.state(), lengths, one.options)
        for step in one.steps(0, 2):
            for plan in step.batches:
                assert plan.token_slots <= budget
                assert most is None or len(plan) <= most
    left = one.steps(0, 10**6)
    assert one.remaining_batches() == sum(len(step.batches) for step in left)
    trained += batches_of(left)
    assert sorted(flat(trained)) == list(range(len(lengths)))


def test_later_windows_are_those_of_a_run_that_began_with_the_new_budget():
    one = planner(window=64)
    one.commit(2)
    assert 0 < one.cursor.batches < 20
    one.change(options=TokenBatchOptions(80))
    rest = batches_of(one.steps(0, 1000))
    whole = batches_of(planner(window=64, options=TokenBatchOptions(80)).steps(0, 1000))
    assert rest != whole
    assert rest[-40:] == whole[-40:]


@pytest.mark.parametrize("committed", [1, 2, 3, 9])
def test_what_was_committed_before_a_change_is_not_packed_again(committed):
    one = planner(size=1, window=300)
    trained = batches_of(one.steps(0, committed))
    one.commit(committed)
    one.change(options=TokenBatchOptions(90))
    again = StepPlanner.from_state(one.state(), long_tailed(300), one.options)
    trained += batches_of(again.steps(0, 1000))
    assert sorted(flat(trained)) == list(range(300))


def test_a_change_that_is_refused_changes_nothing():
    one = planner()
    one.commit(3)
    before = one.state()
    for bad in (
        {"options": TokenBatchOptions(63)},
        {"options": TokenBatchOptions(99, None, TokenBatchLayout.PADDED)},
        {"options": TokenBatchOptions(99), "batches_per_step": 0},
    ):
        with pytest.raises(SamplerError):
            one.change(**bad)
        assert one.state() == before
    with pytest.raises(TypeError, match="options must be"):
        one.change(options=5)


def test_a_planner_that_has_begun_the_next_window_can_be_copied():
    one = planner(window=32)
    first = one.steps(0, 2)
    copied = pickle.loads(pickle.dumps(one))
    assert copied.steps(0, 1000) == one.steps(0, 1000)
    assert copied.steps(0, 2) == first


def test_a_window_is_packed_anew_64_times_at_the_most():
    one = planner(count=2000, size=1, window=2000)
    for number in range(65):
        one.commit(1)
        if number == 64:
            with pytest.raises(SamplerError, match="64 times"):
                one.change(options=TokenBatchOptions(70 + number))
        else:
            one.change(options=TokenBatchOptions(70 + number))


def test_a_cursor_that_lies_beyond_its_windows_batches_is_an_error():
    one = planner()
    state = one.state()
    values = state.to_dict()
    values["cursor"]["batches"] = 500
    wrong = StepPlanner.from_state(type(state).from_dict(values), long_tailed(300), OPTIONS)
    with pytest.raises(SamplerError, match=r"cursor\.batches must be below"):
        wrong.steps(0, 1)


@pytest.mark.parametrize("window", [0, -1, 2**63])
def test_a_window_out_of_range_is_refused(window):
    with pytest.raises(SamplerError, match="window must be at"):
        planner(window=window)


def test_the_plan_of_a_seed_never_changes():
    steps = planner(40, size=2, seed=2026, window=16).steps(0, 20)
    assert batches_of(steps)[:6] == GOLDEN
    assert [(step.end.position, step.end.batches) for step in steps][:4] == GOLDEN_ENDS


GOLDEN = [[23, 35, 6], [5, 17, 39], [14, 9, 16, 10, 26, 34, 36, 30], [19, 21], [2, 0, 25, 3, 15], [27]]
GOLDEN_ENDS = [(0, 2), (16, 0), (16, 2), (32, 0)]


@pytest.mark.parametrize("layout", list(TokenBatchLayout))
@pytest.mark.parametrize("packing", ["best_fit", "greedy"])
@pytest.mark.parametrize("length", [0, -5, 5_000, 2**30])
def test_a_table_that_its_manifest_does_not_tell_of_is_an_error_that_names_the_example(
    packing, layout, length
):
    lengths = long_tailed(300).astype(np.int32)
    lengths[211] = length
    table = LengthTable(lengths, "known", minimum=1, minimum_index=0, maximum=64, maximum_index=1)
    one = StepPlanner(
        "s", table, TokenBatchOptions(64, None, layout), batches_per_step=4, packing=packing, seed=7
    )
    with pytest.raises(SamplerError, match=f"got {length} at index 211;"):
        one.steps(0, 1000)
