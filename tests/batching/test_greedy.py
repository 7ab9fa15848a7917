"""Greedy batches of the compiled loop are those of the plain rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching import TokenBatchOptions
from raypack.batching.figures import plans_from_ends
from raypack.batching.greedy import greedy_ends
from raypack.batching.kernels.columns import batch_figures
from raypack.batching.kernels.greedy import packed_ends, padded_ends
from raypack.errors import SamplerError
from tests.support.greedy_model import greedy_batches, plain_ends


def assert_greedy(lengths, options):
    ends = greedy_ends(lengths, options)
    assert ends.dtype == np.int64
    assert ends.tolist() == plain_ends(lengths, options)


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


@given(seed=seeds, size=st.integers(1, 3000), limits=limits)
def test_sequences_of_changing_means_follow_the_rule(seed, size, limits):
    assert_greedy(drawn(seed, size), TokenBatchOptions(**limits))


@given(lengths=st.lists(st.integers(1, 20), max_size=40), limits=limits)
def test_the_plain_loop_is_the_rule_of_the_longest_prefix(lengths, limits):
    options = TokenBatchOptions(**limits)
    batches = greedy_batches(
        range(len(lengths)), lengths, options.maximum_tokens, options.maximum_examples, options.layout.value
    )
    assert [batch[-1] + 1 for batch in batches] == plain_ends(lengths, options)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("budget", [4_096, 16_384, 1_000_000])
@pytest.mark.parametrize("median", [400, 75, 25])
@pytest.mark.parametrize("maximum_examples", [None, 4, 32, 3_000])
def test_long_sequences_follow_the_rule_(layout, budget, median, maximum_examples):
    lengths = np.random.default_rng(1).lognormal(np.log(median), 0.8, 150_000)
    lengths = np.clip(lengths, 1, 4096).astype(np.int32)
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
    "all alike but the first": lambda size: np.where(np.arange(size), 371, 3),
}


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("maximum_examples", [None, 1, 37, 5_000])
def test_no_sequence_leads_astray(name, layout, maximum_examples):
    lengths = ADVERSARIES[name](140_000).astype(np.int32)
    assert_greedy(lengths, TokenBatchOptions(4096, maximum_examples, layout))


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("size", [1, 2_048, 200_000])
def test_one_batch_of_all_is_one_batch(layout, size):
    assert greedy_ends(np.ones(size, np.int32), TokenBatchOptions(2**40, None, layout)).tolist() == [size]


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("budget", [2**31 - 1, 2**31, 2**33, 2**36, 2**62, 2**63 - 1])
@pytest.mark.parametrize("lengths", [[1, 2**30, 2**31 - 1], [2**31 - 1], [1, 2, 2**31 - 1]])
@pytest.mark.parametrize("maximum_examples", [None, 3, 2**63 - 1])
def test_lengths_and_budgets_at_the_limits_do_not_overflow(layout, budget, lengths, maximum_examples):
    table = np.random.default_rng(2).choice(lengths, 9_000).astype(np.int32)
    options = TokenBatchOptions(budget, maximum_examples, layout)
    assert_greedy(table, options)


@pytest.mark.parametrize("room", [1, 2, 7])
@pytest.mark.parametrize("find_ends", [packed_ends, padded_ends])
def test_a_search_that_is_full_goes_on_where_it_ended(find_ends, room):
    lengths = drawn(7, 500)
    options = TokenBatchOptions(40, 5, "packed" if find_ends is packed_ends else "padded")
    ends, start = [], 0
    while start < len(lengths):
        piece = np.empty(room, np.int64)
        found, wrong = find_ends(lengths, start, 40, 5, piece)
        assert wrong == -1
        ends += piece[:found].tolist()
        start = ends[-1]
    assert ends == plain_ends(lengths, options)
    assert find_ends(lengths, 0, 40, 5, np.empty(0, np.int64)) == (0, -1)


@pytest.mark.parametrize("length", [0, -5, 21, 5_000, 2**30, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("place", [0, 3, 99])
@pytest.mark.parametrize("find_ends", [packed_ends, padded_ends])
def test_a_damaged_table_gives_the_place_of_the_first_length_that_is_wrong(find_ends, place, length):
    lengths = np.full(100, 7, np.int32)
    lengths[place] = lengths[99] = length
    _, wrong = find_ends(lengths, 0, 20, 2**32 - 1, np.empty(100, np.int64))
    assert wrong == place


@pytest.mark.parametrize("lengths", [[3, 0, 5], [3, 21]])
def test_an_example_that_fits_no_batch_is_an_error(lengths):
    with pytest.raises(SamplerError, match="index 1;"):
        greedy_ends(lengths, TokenBatchOptions(20))


def test_an_error_names_the_example_by_its_index_in_the_source():
    with pytest.raises(SamplerError, match="got 99 at index 70;"):
        greedy_ends(np.array([3, 99], np.int32), TokenBatchOptions(20), names=np.array([5, 70]))


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


@pytest.mark.parametrize("ends", [[0], [-1], [3, 2], [4], [2**62], [1, -(2**62)]])
def test_figures_of_ends_that_are_no_batches_give_the_first_that_is_wrong(ends):
    count = len(ends)
    columns = (np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros((2, count), np.int64))
    assert batch_figures(np.ones(3, np.int32), np.array(ends), *columns) == count - 1


@pytest.mark.parametrize("length", [1, 4096, 2**31 - 1])
def test_sums_of_squares_are_exact_for_any_length(length):
    columns = (np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((2, 1), np.int64))
    assert batch_figures(np.full(9, length, np.int32), np.array([9]), *columns) == -1
    high, low = columns[2][:, 0].tolist()
    assert (high << 32) + low == 9 * length**2
