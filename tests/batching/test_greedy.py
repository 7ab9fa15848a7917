"""Greedy batches, vectorised in several ways, are those of the plain rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching import TokenBatchOptions
from raypack.batching import greedy as module
from raypack.batching.greedy import greedy_ends, longest_prefix, plans_from_ends
from raypack.batching.lanes import batch_starts, lane_dtype
from raypack.batching.limits import Filled, Limits, walk
from raypack.batching.search import starts_by_prefix
from raypack.batching.sums import starts_by_sum
from raypack.errors import SamplerError


def plain_ends(lengths, options):
    """The rule, an example at a time."""
    ends, filled = [], []
    for position, length in enumerate(map(int, lengths)):
        grown = [*filled, length]
        cost = options.cost(len(grown), sum(grown), max(grown))
        limit = options.maximum_examples
        if filled and (cost > options.maximum_tokens or (limit is not None and len(grown) > limit)):
            ends.append(position)
            grown = [length]
        filled = grown
    return [*ends, len(lengths)] if len(lengths) else []


def walked_ends(lengths, options):
    starts, _ = walk(lengths.tolist(), Limits.of(options), Filled())
    return [*starts, len(lengths)]


limits = st.fixed_dictionaries(
    {
        "maximum_tokens": st.integers(20, 90),
        "maximum_examples": st.none() | st.integers(1, 9),
        "layout": st.sampled_from(["packed", "padded"]),
    }
)


@given(lengths=st.lists(st.integers(1, 20), max_size=150), limits=limits)
def test_short_sequences_follow_the_rule(lengths, limits):
    options = TokenBatchOptions(**limits)
    ends = greedy_ends(lengths, options)
    assert ends.dtype == np.int64
    assert ends.tolist() == plain_ends(lengths, options)


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 3000), limits=limits, per_lane=st.integers(1, 900))
def test_every_way_finds_the_same_batches(seed, size, limits, per_lane):
    lengths = np.random.default_rng(seed).integers(1, 21, size).astype(np.int32)
    options = TokenBatchOptions(**limits)
    bounds = Limits.of(options)
    expected = [0, *walk(lengths.tolist(), bounds, Filled())[0]]
    assert batch_starts(lengths, bounds, per_lane).tolist() == expected
    assert starts_by_prefix(lengths, bounds, 1).tolist() == expected
    if not bounds.padded:
        assert starts_by_sum(lengths, bounds, 1).tolist() == expected


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize(("mean", "budget"), [(550, 4096), (100, 4096), (8, 4096), (30, 70_000)])
@pytest.mark.parametrize("maximum_examples", [None, 7])
def test_long_sequences_follow_the_rule_across_blocks(layout, mean, budget, maximum_examples, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 50_000)
    lengths = np.minimum(np.random.default_rng(1).exponential(mean, 120_000) + 1, 4096).astype(np.int32)
    options = TokenBatchOptions(budget, maximum_examples, layout)
    assert greedy_ends(lengths, options).tolist() == walked_ends(lengths, options)


@pytest.mark.parametrize("length", [1, 371, 500, 1024])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_equally_long_examples_that_never_bring_lanes_together_are_right(length, layout):
    lengths = np.full(100_000, length, np.int32)
    lengths[0] = 3
    options = TokenBatchOptions(4096, None, layout)
    assert greedy_ends(lengths, options).tolist() == walked_ends(lengths, options)


def test_a_batch_longer_than_a_block_is_one_batch(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 1_000)
    lengths = np.ones(10_000, np.int32)
    assert greedy_ends(lengths, TokenBatchOptions(6_000)).tolist() == [6_000, 10_000]


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("budget", [2**31 - 1, 2**31, 2**33, 2**62, 2**63 - 1])
def test_lengths_and_budgets_at_the_limits_do_not_overflow(layout, budget):
    lengths = np.random.default_rng(2).choice([1, 2**30, 2**31 - 1], 9_000).astype(np.int32)
    options = TokenBatchOptions(budget, None, layout)
    assert greedy_ends(lengths, options).tolist() == walked_ends(lengths, options)
    bounds = Limits.of(options)
    assert lane_dtype(bounds) is np.int64
    expected = [0, *walk(lengths.tolist(), bounds, Filled())[0]]
    assert batch_starts(lengths, bounds, 100).tolist() == expected


@pytest.mark.parametrize("budget", [2**30 - 2, 2**30 - 1, 2**30])
def test_narrow_lanes_hold_the_largest_packed_budget_that_they_are_given(budget):
    lengths = np.random.default_rng(3).integers(1, budget + 1, 5_000).astype(np.int32)
    lengths[::3] = budget
    bounds = Limits.of(TokenBatchOptions(budget))
    expected = [0, *walk(lengths.tolist(), bounds, Filled())[0]]
    assert batch_starts(lengths, bounds, 64).tolist() == expected


@pytest.mark.parametrize("budget", [46_340, 46_341])
def test_narrow_lanes_hold_the_largest_padded_budget_that_they_are_given(budget):
    lengths = np.ones(120_000, np.int32)
    lengths[budget - 1 :: 50_000] = budget
    bounds = Limits.of(TokenBatchOptions(budget, None, "padded"))
    expected = [0, *walk(lengths.tolist(), bounds, Filled())[0]]
    assert batch_starts(lengths, bounds, 60_000).tolist() == expected


@given(lengths=st.lists(st.integers(1, 20), max_size=60), limits=limits, guess=st.integers(1, 100))
def test_the_longest_prefix_is_the_first_batch(lengths, limits, guess):
    options = TokenBatchOptions(**limits)
    table = np.array(lengths, np.int32)
    assert longest_prefix(table, options, guess) == (plain_ends(lengths, options) or [0])[0]


@pytest.mark.parametrize("lengths", [[3, 0, 5], [3, 21]])
def test_an_example_that_fits_no_batch_is_an_error(lengths):
    with pytest.raises(SamplerError, match="index 1;"):
        greedy_ends(lengths, TokenBatchOptions(20))


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=80), limits=limits)
def test_plans_have_the_exact_cost_of_their_examples(lengths, limits):
    options = TokenBatchOptions(**limits)
    indices = np.arange(100, 100 + len(lengths))
    table = np.array(lengths, np.int32)
    plans = plans_from_ends(indices, table, greedy_ends(table, options), options)
    assert [index for plan in plans for index in plan.indices] == indices.tolist()
    for plan in plans:
        own = [lengths[index - 100] for index in plan.indices]
        assert plan.real_tokens == sum(own)
        assert plan.maximum_sequence_length == max(own)
        assert plan.token_slots == options.cost(len(own), sum(own), max(own)) <= options.maximum_tokens
        assert type(plan.real_tokens) is int
        assert not plan.indices.flags.writeable


@pytest.mark.parametrize("ends", [[2, 2, 3], [3, 2], [0, 3], [2, 4]])
def test_ends_that_are_no_batches_are_refused(ends):
    with pytest.raises(SamplerError, match="ends"):
        plans_from_ends(np.arange(3), np.ones(3, np.int32), np.array(ends), TokenBatchOptions(9))


def test_sums_of_many_long_examples_do_not_overflow():
    table = np.full(5, 2**31 - 1, np.int32)
    options = TokenBatchOptions(2**40)
    plan = plans_from_ends(np.arange(5), table, greedy_ends(table, options), options)[0]
    assert plan.real_tokens == 5 * (2**31 - 1)
