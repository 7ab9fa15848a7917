import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching.steps.assignment import AttentionCost, _longest_first, deal_batches
from raypack.errors import SamplerError


@given(st.lists(st.integers(0, 2**40), max_size=40), st.integers(1, 9))
def test_every_batch_is_dealt_once_and_no_rank_gets_more_than_its_share(costs, world_size):
    ranks = deal_batches(costs, world_size)
    assert len(ranks) == world_size
    assert sorted(p for rank in ranks for p in rank) == list(range(len(costs)))
    assert all(len(rank) <= -(-len(costs) // world_size) for rank in ranks)
    assert all(rank == sorted(rank) for rank in ranks)


def test_a_long_tailed_step_is_balanced_within_three_percent():
    costs = np.random.default_rng(0).lognormal(0, 0.5, 64) * 1e6
    ranks = deal_batches([int(c) for c in costs], 8)
    loads = [costs[rank].sum() for rank in ranks]
    assert max(loads) / np.mean(loads) <= 1.03


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=40), st.integers(2, 9))
def test_swaps_never_leave_the_slowest_rank_slower_than_longest_first_alone(costs, world_size):
    def slowest(ranks):
        return max(sum(costs[p] for p in rank) for rank in ranks)

    assert slowest(deal_batches(costs, world_size)) <= slowest(_longest_first(costs, world_size))


@pytest.mark.parametrize("seed", range(5))
def test_batches_of_very_uneven_cost_are_balanced_nearly_as_well_as_they_can_be(seed):
    costs = (np.random.default_rng(seed).lognormal(0, 1.2, 64) * 1e6).astype(int).tolist()
    loads = [sum(costs[p] for p in rank) for rank in deal_batches(costs, 8)]
    ordered = sorted(costs)
    bound = max(sum(costs) / 8, ordered[-1] + sum(ordered[:7]))  # the dearest with the seven cheapest
    assert max(loads) <= 1.03 * bound


def test_a_step_of_very_many_batches_a_rank_is_dealt_at_once_and_evenly():
    costs = (np.random.default_rng(0).pareto(1.5, 8192) * 1e6).astype(int).tolist()
    ranks = deal_batches(costs, 8)
    loads = [sum(costs[p] for p in rank) for rank in ranks]
    assert {len(rank) for rank in ranks} == {1024}
    assert max(loads) <= 1.01 * max(sum(costs) / 8, max(costs))


def test_costs_too_great_for_exact_sums_are_dealt_all_the_same():
    costs = [2**70, 2**70 + 1, 3, 2**69]
    ranks = deal_batches(costs, 2)
    assert sorted(p for rank in ranks for p in rank) == [0, 1, 2, 3]


def test_the_deal_of_a_step_never_changes():
    costs = (np.arange(1, 14) ** 3 % 101).tolist()
    assert deal_batches(costs, 4) == GOLDEN


def test_the_deal_is_the_same_for_equal_costs():
    assert deal_batches([5, 5, 5, 5, 5], 2) == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize("cost", [0, 5])
def test_no_rank_idles_where_costs_are_equal(cost):
    assert sorted(map(len, deal_batches([cost] * 4, 3))) == [1, 1, 2]
    assert sorted(map(len, deal_batches([cost] * 9, 4))) == [2, 2, 2, 3]


def test_the_default_cost_is_twelve_hidden_sizes_to_one():
    assert AttentionCost.of(None) == AttentionCost(12 * 1024, 1)
    assert AttentionCost.of((3, 4)) == AttentionCost(3, 4)


@pytest.mark.parametrize("value", ["ab", (1,), 5, {"a": 1}])
def test_a_cost_that_is_no_pair_is_refused(value):
    with pytest.raises(TypeError, match="attention_cost must be"):
        AttentionCost.of(value)


def test_a_world_without_ranks_is_refused():
    with pytest.raises(SamplerError, match="world_size must be at least 1, got 0"):
        deal_batches([1], 0)


GOLDEN = [[0, 1, 9], [7, 10, 12], [3, 4, 5], [2, 6, 8, 11]]
