"""Greedy batches, vectorised in several ways, are those of the plain rule."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching import TokenBatchOptions, course, dense, search
from raypack.batching.greedy import greedy_ends, longest_prefix, plans_from_ends
from raypack.batching.jumps import PackedJumps, PaddedJumps
from raypack.batching.lanes import ends_by_lanes
from raypack.batching.limits import Filled, Limits, walk
from raypack.batching.search import prefix
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
    return [*starts, len(lengths)] if len(lengths) else []


def assert_greedy(lengths, options):
    ends = greedy_ends(lengths, options)
    assert ends.dtype == np.int64
    assert ends.tolist() == walked_ends(lengths, options)


def assert_begins(found, expected):
    """A way may leave off early; what it finds must be right."""
    assert found.tolist() == expected[: len(found)]


limits = st.fixed_dictionaries(
    {
        "maximum_tokens": st.integers(20, 90),
        "maximum_examples": st.none() | st.integers(1, 9),
        "layout": st.sampled_from(["packed", "padded"]),
    }
)
seeds = st.integers(0, 2**32 - 1)


def drawn(seed, size):
    """Lengths of 1 to 20, by stretches of another mean each; some seeds are all one length."""
    rng = np.random.default_rng(seed)
    means = rng.integers(1, 21, size // int(rng.integers(1, size + 1)) + 1)
    most = np.repeat(means, -(-size // len(means)))[:size]
    return (rng.integers(0, 2**31, size) % most + 1).astype(np.int32) if seed % 4 else most.astype(np.int32)


@given(lengths=st.lists(st.integers(1, 20), max_size=150), limits=limits)
def test_short_sequences_follow_the_rule(lengths, limits):
    options = TokenBatchOptions(**limits)
    ends = greedy_ends(lengths, options)
    assert ends.dtype == np.int64
    assert ends.tolist() == plain_ends(lengths, options)


@given(
    seed=seeds,
    size=st.integers(1, 3000),
    limits=limits,
    typical=st.integers(1, 60),
    per_lane=st.integers(1, 900),
    patience=st.integers(0, 3000),
    least=st.integers(1, 12),
    full=st.booleans(),
    block=st.integers(20, 500),
)
def test_every_way_finds_the_same_batches(
    seed, size, limits, typical, per_lane, patience, least, full, block
):
    lengths = drawn(seed, size)
    options = TokenBatchOptions(**limits)
    bounds, expected = Limits.of(options), walked_ends(lengths, options)
    with mock.patch.object(dense, "_BLOCK", block), mock.patch.object(search, "_BLOCK", block):
        assert_begins(dense.ends_by_example(lengths, bounds, typical, least, full), expected)
        assert_begins(search.ends_by_prefix(lengths, bounds, typical), expected)
        if bounds.padded:
            jumps = PaddedJumps(lengths, bounds, typical)
            assert_begins(ends_by_lanes(jumps, per_lane, patience), expected)
        else:
            assert_begins(search.ends_by_sum(lengths, bounds, typical), expected)


@given(seed=seeds, size=st.integers(1, 2000), limits=limits, typical=st.integers(1, 60))
def test_jumps_end_where_the_rule_does(seed, size, limits, typical):
    lengths, bounds = drawn(seed, size), Limits.of(TokenBatchOptions(**limits))
    positions = np.random.default_rng(seed).integers(0, size, 30)
    expected = [at + prefix(lengths[at:], bounds, 8) for at in positions.tolist()]
    jumps = PaddedJumps(lengths, bounds, typical) if bounds.padded else PackedJumps(lengths, bounds)
    found = jumps.ends(positions)
    assert found is None or found.tolist() == expected
    assert found is not None or max(expected) > typical


SMALL = {
    "_STRETCH": st.integers(50, 1500),
    "_SAMPLE": st.integers(1, 60),
    "_SLOW_STRETCH": st.integers(1, 200),
    "_PADDED_DENSE_BELOW": st.integers(0, 20),
    "_PACKED_DENSE_BELOW": st.integers(0, 20),
    "_STEP": st.integers(1, 5),
    "_LANE_BATCHES": st.integers(1, 20),
    "_LARGE": st.integers(0, 20),
    "_ALIKE": st.integers(0, 20),
    "_LONG": st.integers(0, 20),
}


@given(
    seed=seeds,
    size=st.integers(1, 3000),
    limits=limits,
    course_constants=st.fixed_dictionaries(SMALL),
    block=st.integers(10, 400),
    passes=st.integers(1, 12),
)
def test_ways_that_take_turns_follow_the_rule(seed, size, limits, course_constants, block, passes):
    with (
        mock.patch.multiple(course, MOST_COUNTED=0, **course_constants),
        mock.patch.multiple(dense, _BLOCK=block, _PASSES=passes, _STRIDE_FROM=3),
        mock.patch.object(search, "_BLOCK", block),
    ):
        assert_greedy(drawn(seed, size), TokenBatchOptions(**limits))


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("budget", [4_096, 16_384, 1_000_000])
@pytest.mark.parametrize("median", [400, 75, 25])
@pytest.mark.parametrize("maximum_examples", [None, 4, 32, 3_000])
def test_long_sequences_follow_the_rule_across_stretches(layout, budget, median, maximum_examples):
    lengths = np.random.default_rng(1).lognormal(np.log(median), 0.8, 150_000)
    lengths = np.clip(lengths, 1, 4096).astype(np.int32)
    with mock.patch.object(course, "_STRETCH", 70_000):
        assert_greedy(lengths, TokenBatchOptions(budget, maximum_examples, layout))


def sawtooth(size):
    return np.arange(size) % 4096 + 1


def changing(size):
    """Stretches of small batches and of large ones, each long enough to be taken for all there is."""
    return np.where(np.arange(size) // 30_000 % 2, 2_000, 1)


ADVERSARIES = {
    "ones": np.ones,
    "budget": lambda size: np.full(size, 4096),
    "ones and budget": lambda size: np.where(np.arange(size) % 2, 1, 4096),
    "a budget in 1,000 ones": lambda size: np.where(np.arange(size) % 1_000, 1, 4096),
    "a sawtooth": sawtooth,
    "a falling sawtooth": lambda size: sawtooth(size)[::-1],
    "changing stretches": changing,
    "ones at the end": lambda size: np.where(np.arange(size) < size // 2, 900, 1),
    "lanes that never meet": lambda size: np.where(np.arange(size), 100, 3),
    "lanes that never meet, larger": lambda size: np.where(np.arange(size), 3, 1),
}


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("maximum_examples", [None, 1, 37, 5_000])
def test_no_sequence_leads_astray(name, layout, maximum_examples):
    lengths = ADVERSARIES[name](140_000).astype(np.int32)
    assert_greedy(lengths, TokenBatchOptions(4096, maximum_examples, layout))


@pytest.mark.parametrize("length", [1, 371, 500, 1024])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_equally_long_examples_that_never_bring_lanes_together_are_right(length, layout):
    lengths = np.full(100_000, length, np.int32)
    lengths[0] = 3
    assert_greedy(lengths, TokenBatchOptions(4096, None, layout))


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("size", [2_047, 2_048, 2_049, 5_000, 200_000])
def test_one_batch_of_all_is_one_batch(layout, size):
    with mock.patch.object(course, "_STRETCH", 10_000):
        assert greedy_ends(np.ones(size, np.int32), TokenBatchOptions(2**40, None, layout)).tolist() == [size]


@pytest.mark.parametrize("border", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize(("length", "budget"), [(1, 8), (1, 20), (7, 4096)])
def test_batches_that_end_at_a_border_of_blocks_are_closed_there(border, layout, length, budget):
    size = 2_048 + 2 * 65_536 + border
    lengths = np.full(size, length, np.int32)
    assert_greedy(lengths, TokenBatchOptions(budget, None, layout))


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("budget", [2**31 - 1, 2**31, 2**33, 2**36, 2**62, 2**63 - 1])
@pytest.mark.parametrize("lengths", [[1, 2**30, 2**31 - 1], [2**31 - 1], [1, 2, 2**31 - 1]])
@pytest.mark.parametrize("maximum_examples", [None, 3, 2**63 - 1])
def test_lengths_and_budgets_at_the_limits_do_not_overflow(layout, budget, lengths, maximum_examples):
    table = np.random.default_rng(2).choice(lengths, 9_000).astype(np.int32)
    options = TokenBatchOptions(budget, maximum_examples, layout)
    assert_greedy(table, options)
    bounds, expected = Limits.of(options), walked_ends(table, options)
    assert_begins(dense.ends_by_example(table, bounds, 3, 1, False), expected)
    if bounds.padded:
        assert_begins(ends_by_lanes(PaddedJumps(table, bounds, 30), 500, 500), expected)


@pytest.mark.parametrize("longest", [2**15 - 2, 2**15 - 1, 2**15])
@pytest.mark.parametrize("budget", [2**15, 2**15 + 1, 2**16, 2**20])
def test_narrow_lengths_are_as_right_as_wide_ones(longest, budget):
    lengths = np.random.default_rng(4).integers(1, longest + 1, 20_000).astype(np.int32)
    lengths[::7] = min(longest, budget)
    assert_greedy(lengths, TokenBatchOptions(budget, None, "padded"))


@pytest.mark.parametrize("total", [2**31 - 2, 2**31 - 1, 2**31])
def test_narrow_sums_hold_what_they_are_given(total):
    lengths = np.full(10_000, 1_000, np.int32)
    options = TokenBatchOptions(total - int(lengths.sum()))
    assert_greedy(lengths, options)
    bounds, expected = Limits.of(options), walked_ends(lengths, options)
    assert_begins(dense.ends_by_example(lengths, bounds, 3, 1, False), expected)
    assert search.ends_by_sum(lengths, bounds, 3).tolist() == expected


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


@pytest.mark.parametrize("maximum_examples", [6, 37, 5_000])
def test_sums_stop_at_the_number_of_examples_when_batches_are_larger_than_expected(maximum_examples):
    bounds = Limits.of(TokenBatchOptions(4096, maximum_examples))
    lengths = np.ones(9_000, np.int32)
    found = search.ends_by_sum(lengths, bounds, 2)
    assert len(found) > 2
    assert_begins(found, walked_ends(lengths, TokenBatchOptions(4096, maximum_examples)))
