import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching.best_fit import best_fit_bins
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.rooms import Rooms
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


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=200))
def test_rooms_gives_the_least_room_that_suffices_and_the_lowest_bin_of_equal_ones(actions):
    rooms, model = Rooms([7, 3, 7]), [(7, 0), (3, 1), (7, 2)]
    for number, (put, room) in enumerate(actions, start=3):
        if put:
            rooms.put(room, number)
            model.append((room, number))
        else:
            expected = min((entry for entry in model if entry[0] >= room), default=None)
            assert rooms.take(room) == expected
            if expected:
                model.remove(expected)


def test_rooms_of_ten_thousand_bins_come_out_in_order():
    numbers = np.random.default_rng(0).permutation(10_000).tolist()
    rooms = Rooms(numbers[:5_000])
    for bin_number, room in enumerate(numbers[5_000:], start=5_000):
        rooms.put(room, bin_number)
    taken = [rooms.take(0) for _ in range(10_001)]
    assert taken == [*((room, numbers.index(room)) for room in range(10_000)), None]
