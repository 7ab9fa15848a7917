import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching.best_fit import best_fit_bins
from raypack.batching.kernels.batches import batch_after_batch, ranks_by_first
from raypack.batching.kernels.best_fit import best_fit_decreasing, longest_first
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.errors import SamplerError
from tests.conftest import long_tailed


def plain_best_fit(lengths, budget, most):
    """Best-fit decreasing, example by example and bin by bin."""
    rooms, held, bins = [], [], [None] * len(lengths)
    for example in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fitting = [
            (room, number)
            for number, room in enumerate(rooms)
            if room >= lengths[example] and (most is None or held[number] < most)
        ]
        if fitting:
            number = min(fitting)[1]
        else:
            number = len(rooms)
            rooms.append(budget)
            held.append(0)
        rooms[number] -= lengths[example]
        held[number] += 1
        bins[example] = number
    return bins, len(rooms)


@given(
    st.integers(1, 60).flatmap(
        lambda budget: st.tuples(st.just(budget), st.lists(st.integers(1, budget), max_size=80))
    ),
    st.none() | st.integers(1, 6),
)
def test_packed_bins_are_those_of_plain_best_fit_decreasing(case, most):
    budget, lengths = case
    bins, count = best_fit_bins(np.array(lengths, np.int32), TokenBatchOptions(budget, most))
    assert (bins.tolist(), count) == plain_best_fit(lengths, budget, most)


@pytest.mark.parametrize("high", [40, 1000, 4096])
def test_packed_bins_of_thousands_of_examples_are_those_of_the_plain_rule(high):
    lengths = np.random.default_rng(high).integers(1, high + 1, 4000)
    bins, count = best_fit_bins(lengths.astype(np.int32), TokenBatchOptions(4096))
    assert (bins.tolist(), count) == plain_best_fit(lengths.tolist(), 4096, None)


@given(
    st.integers(1, 60).flatmap(
        lambda budget: st.tuples(st.just(budget), st.lists(st.integers(1, budget), max_size=80))
    ),
    st.none() | st.integers(1, 6),
    st.sampled_from(list(TokenBatchLayout)),
)
def test_no_bin_is_empty_over_the_budget_or_has_too_many_examples(case, most, layout):
    budget, lengths = case
    table = np.array(lengths, np.int32)
    options = TokenBatchOptions(budget, most, layout)
    bins, count = best_fit_bins(table, options)
    assert sorted(set(bins.tolist())) == list(range(count))
    for number in range(count):
        held = table[bins == number]
        assert options.cost(len(held), int(held.sum()), int(held.max())) <= budget
        assert most is None or len(held) <= most


def test_padded_bins_are_runs_of_the_sorted_lengths():
    lengths = long_tailed(500).astype(np.int32)
    bins, count = best_fit_bins(lengths, TokenBatchOptions(256, None, TokenBatchLayout.PADDED))
    spans = [(lengths[bins == number].min(), lengths[bins == number].max()) for number in range(count)]
    assert all(later[1] <= earlier[0] for earlier, later in itertools.pairwise(spans))


@pytest.mark.parametrize("length", [1, 2**31 - 1])
@pytest.mark.parametrize("budget", [2**31 - 1, 2**63 - 1])
def test_huge_lengths_and_budgets_do_not_overflow(length, budget):
    lengths = np.full(9, length, np.int32)
    bins, count = best_fit_bins(lengths, TokenBatchOptions(budget))
    assert count == (9 if budget == length else 1)
    assert np.bincount(bins).max() == 9 // count


@pytest.mark.parametrize(
    ("longest", "budget"), [(100, 300), (4095, 4096), (4096, 4096), (70_000, 10**6), (2**31 - 1, 2**31 - 1)]
)
def test_any_range_of_lengths_and_any_budget_follows_the_plain_rule(longest, budget):
    lengths = np.random.default_rng(longest).integers(1, longest + 1, 700)
    lengths[:5] = 1, longest, longest, 1, longest
    for most in (None, 1, 3):
        bins, count = best_fit_bins(lengths.astype(np.int32), TokenBatchOptions(budget, most))
        assert (bins.tolist(), count) == plain_best_fit(lengths.tolist(), budget, most)


def test_many_bins_of_one_room_are_filled_in_their_order():
    lengths = np.repeat([600, 400, 300, 100], 20_000).astype(np.int32)
    bins, count = best_fit_bins(lengths, TokenBatchOptions(1000))
    first, second, third, fourth = bins.reshape(4, -1)
    assert np.array_equal(first, np.arange(20_000))
    assert np.array_equal(second, first)
    assert np.array_equal(third, 20_000 + np.arange(20_000) // 3)
    assert np.array_equal(fourth[:6_666], np.arange(20_000, 26_666))
    assert (count, fourth.max()) == (28_000, 27_999)


@pytest.mark.parametrize("longest", [90, 5000, 2**31 - 1])
def test_longest_first_is_a_stable_sort(longest):
    lengths = np.random.default_rng(longest).integers(1, longest + 1, 3000).astype(np.int32)
    order = np.empty(3000, np.int64)
    assert longest_first(lengths, longest, order) == -1
    assert np.array_equal(order, np.argsort(-lengths.astype(np.int64), kind="stable"))


@pytest.mark.parametrize("length", [0, -5, 65, 5_000, 2**30, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("layout", list(TokenBatchLayout))
def test_a_damaged_table_is_an_error_that_names_the_example(length, layout):
    lengths = long_tailed(1000).astype(np.int32)
    lengths[[700, 900]] = length
    with pytest.raises(SamplerError, match=f"got {length} at index 1700;"):
        best_fit_bins(lengths, TokenBatchOptions(64, None, layout), names=np.arange(1000, 2000))
    bins = np.full(1000, -7)
    assert best_fit_decreasing(lengths, 64, 2**32 - 1, bins) == (0, 700)
    assert (bins == -7).all()


@pytest.mark.parametrize("bins", [[0, 1, 2], [0, -1, 1], [2**62, 0, 1], [0, 1, -(2**63)]])
def test_bins_out_of_range_give_the_place_of_the_first(bins):
    wrong = next(place for place, number in enumerate(bins) if not 0 <= number < 2)
    table, places = np.array(bins), np.empty(3, np.int64)
    ranks, ends = np.empty(2, np.int64), np.empty(2, np.int64)
    assert ranks_by_first(table, ranks) == wrong
    assert batch_after_batch(table, np.arange(2), places, ends) == wrong


@pytest.mark.parametrize("ranks", [[0, 2], [0, -1], [0, 2**62]])
def test_batches_out_of_range_give_the_place_of_the_first(ranks):
    places, ends = np.empty(3, np.int64), np.empty(2, np.int64)
    assert batch_after_batch(np.array([0, 0, 1]), np.array(ranks), places, ends) == 2


@given(st.lists(st.integers(0, 9), max_size=60), st.randoms(use_true_random=False))
def test_batches_hold_their_bins_examples_in_their_order(numbers, random):
    bins, ranks = np.array(numbers, np.int64), np.array(random.sample(range(10), 10))
    places, ends = np.empty(len(bins), np.int64), np.empty(10, np.int64)
    assert batch_after_batch(bins, ranks, places, ends) == -1
    assert np.array_equal(places, np.argsort(ranks[bins], kind="stable"))
    assert np.array_equal(ends, np.cumsum(np.bincount(ranks[bins], minlength=10)))
    first = np.empty(10, np.int64)
    assert ranks_by_first(bins, first) == -1
    seen = list(dict.fromkeys(numbers))
    assert first.tolist() == [seen.index(number) if number in seen else -1 for number in range(10)]
