"""All ranks' records put together and dealt anew, points 40 to 55 of the contract."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.errors import SamplerError
from raypack.sampling import ConsolidatedSamplerState, SamplerState, StatefulShardSampler
from tests.support.worlds import changed, consolidate, reshard, shards, train, world


def four():
    """Ten examples over four ranks, of which 2, 1, 0 and 1 are committed."""
    return train(world(10, 4), [2, 1, 0, 1])


def states(samplers):
    return [sampler.state() for sampler in samplers]


def test_what_no_rank_committed_remains_in_order():
    consolidated = consolidate(four())
    assert consolidated.consumed == 4
    assert consolidated.remaining_indices.tolist() == [2, 5, 6, 7, 8, 9]


def test_records_may_come_in_any_order():
    records = states(four())
    expected = ConsolidatedSamplerState.consolidate(records)
    for seed in range(5):
        random.Random(seed).shuffle(records)
        assert ConsolidatedSamplerState.consolidate(iter(records)) == expected


def test_equal_copies_of_a_rank_count_once():
    records = states(four())
    copies = [*records, SamplerState.from_dict(records[1].to_dict()), records[1]]
    assert ConsolidatedSamplerState.consolidate(copies) == ConsolidatedSamplerState.consolidate(records)


def test_copies_that_differ_are_an_error_naming_the_rank():
    records = states(four())
    with pytest.raises(SamplerError, match="rank 1"):
        ConsolidatedSamplerState.consolidate([*records, changed(records[1], committed=2)])


def test_a_missing_rank_or_no_record_is_an_error():
    records = states(four())
    with pytest.raises(SamplerError, match="missing are 2"):
        ConsolidatedSamplerState.consolidate([records[0], records[1], records[3]])
    with pytest.raises(SamplerError, match="none"):
        ConsolidatedSamplerState.consolidate([])


def test_a_world_too_large_to_count_is_an_error_at_once():
    record = changed(world(10, 1)[0].state(), world_size=2**60)
    with pytest.raises(SamplerError, match="missing are 1, 2, 3, 4, 5"):
        ConsolidatedSamplerState.consolidate([record])


@pytest.mark.parametrize(
    "other",
    [
        {"source_id": "other"},
        {"source_length": 11},
        {"epoch": 1},
        {"seed": 1},
        {"shuffle": "block"},
        {"tail": "drop"},
        {"world_size": 5},
        {"order": range(10)},
    ],
)
def test_a_record_of_another_run_is_an_error(other):
    strange = StatefulShardSampler(
        **{"source_id": "source", "source_length": 10, "rank": 2, "world_size": 4, **other}
    ).state()
    records = states(four())
    records[2] = strange
    with pytest.raises(SamplerError, match=next(iter(other))):
        ConsolidatedSamplerState.consolidate(records)


def test_a_record_of_another_scope_is_an_error():
    records = states(reshard(consolidate(four()), 4))
    records[2] = four()[2].state()
    with pytest.raises(SamplerError, match="agree in"):
        ConsolidatedSamplerState.consolidate(records)


def test_two_ranks_that_claim_one_position_are_an_error():
    samplers = reshard(consolidate(train(world(40, 4), [10, 0, 0, 10])), 3)
    records = states(samplers)
    records[1] = changed(records[1], head=records[0].head[: len(records[1].head)])
    with pytest.raises(SamplerError, match=r"ranks \[0, 1\]"):
        ConsolidatedSamplerState.consolidate(records)


def test_two_ranks_of_other_explicit_orders_are_an_error():
    records = [
        StatefulShardSampler("source", 4, rank=0, world_size=2, order=[0, 1, 2, 3]).state(),
        StatefulShardSampler("source", 4, rank=1, world_size=2, order=[1, 0, 3, 2]).state(),
    ]
    with pytest.raises(SamplerError, match="order"):
        ConsolidatedSamplerState.consolidate(records)


def test_an_invalid_record_is_its_own_error():
    records = states(four())
    object.__setattr__(records[2], "committed", 9)
    with pytest.raises(SamplerError, match="committed must be at most 2"):
        ConsolidatedSamplerState.consolidate(records)
    with pytest.raises(TypeError, match="SamplerState"):
        ConsolidatedSamplerState.consolidate([records[0].to_dict()])


def test_a_finished_epoch_leaves_empty_shards():
    consolidated = consolidate(train(world(10, 4), [3, 3, 2, 2]))
    assert (consolidated.consumed, consolidated.remaining) == (10, 0)
    assert consolidated.remaining_indices.tolist() == []
    assert shards(reshard(consolidated, 3)) == [[], [], []]


@pytest.mark.parametrize(
    "fields",
    [
        {"consumed": 5},
        {"remaining": 5},
        {"version": 2},
        {"version": True},
        {"epoch_size": 9},
        {"head": np.array([2, 2])},
        {"head": np.array([5])},
        {"head": np.arange(7)},
        {"head": np.array([[2]])},
        {"order_digest": "none"},
    ],
)
def test_a_consolidated_record_checks_itself(fields):
    with pytest.raises(SamplerError):
        changed(consolidate(four()), **fields)


def test_what_is_issued_only_remains():
    samplers = four()
    expected = consolidate(samplers)
    for sampler in samplers:
        sampler.next_indices(2)
    assert consolidate(samplers) == expected


def test_what_remains_is_dealt_over_two_three_and_eight():
    consolidated = consolidate(four())
    assert shards(reshard(consolidated, 2)) == [[2, 6, 8], [5, 7, 9]]
    assert shards(reshard(consolidated, 3)) == [[2, 7], [5, 8], [6, 9]]
    assert shards(reshard(consolidated, 8)) == [[2], [5], [6], [7], [8], [9], [], []]


def test_a_resharded_world_is_resharded_again():
    consolidated = consolidate(train(reshard(consolidate(four()), 2), [1, 2]))
    assert consolidated.consumed == 7
    assert consolidated.remaining_indices.tolist() == [6, 8, 9]
    assert shards(reshard(consolidated, 3)) == [[6], [8], [9]]


def test_the_tail_rule_is_not_applied_again():
    consolidated = consolidate(train(world(11, 4, tail="drop"), [1, 1, 1, 0]))
    assert consolidated.remaining_indices.tolist() == [3, 4, 5, 6, 7]
    assert shards(reshard(consolidated, 2)) == [[3, 5, 7], [4, 6]]


def test_a_rank_outside_its_world_is_refused():
    consolidated = consolidate(four())
    for rank, world_size in ((0, 0), (2, 2), (-1, 2)):
        with pytest.raises(SamplerError, match=r"rank|world_size"):
            StatefulShardSampler.reshard(consolidated, rank, world_size)
    with pytest.raises(TypeError, match="rank"):
        StatefulShardSampler.reshard(consolidated, True, 2)
    with pytest.raises(TypeError, match="Consolidated"):
        StatefulShardSampler.reshard(four()[0].state(), 0, 2)


@given(
    length=st.integers(0, 120),
    worlds=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    tail=st.sampled_from(["uneven", "drop"]),
    order=st.sampled_from([{}, {"seed": 3}, {"seed": 9, "shuffle": "block"}, {"order": None}]),
    data=st.data(),
)
def test_any_chain_of_commits_and_reshards_trains_each_example_once(length, worlds, tail, order, data):
    if "order" in order:
        order = {"order": np.random.default_rng(0).permutation(length)}
    whole = StatefulShardSampler("source", length, **order).indices.tolist()
    samplers = world(length, worlds[0], tail=tail, **order)
    epoch = whole[: samplers[0].epoch_size]
    trained = []
    for size in [*worlds[1:], 1]:
        for sampler in samplers:
            sampler.next_indices(data.draw(st.integers(1, length + 1)))
            count = data.draw(st.integers(0, sampler.issued))
            trained += sampler.indices[:count].tolist()
            sampler.commit(count)
        consolidated = consolidate(samplers)
        assert consolidated.consumed == len(trained)
        assert consolidated.remaining_indices.tolist() == [i for i in epoch if i not in set(trained)]
        samplers = reshard(consolidated, size)
    trained += samplers[0].indices.tolist()
    assert sorted(trained) == sorted(epoch)


def test_a_realistic_world_of_a_thousand_ranks_fits_a_mebibyte():
    length, ranks = 10**9, 1024
    steps = np.random.default_rng(0).normal(700_000, 1_000, ranks).astype(int)
    base = world(length, 1, seed=1)[0].state()
    records = [
        changed(base, rank=rank, world_size=ranks, committed=int(steps[rank])) for rank in range(ranks)
    ]
    consolidated = ConsolidatedSamplerState.consolidate(records)
    text = json.dumps(consolidated.to_dict())
    assert len(text) < 2**20
    again = ConsolidatedSamplerState.from_dict(json.loads(text))
    assert again == consolidated
    assert consolidated.consumed == steps.sum()
    scope = StatefulShardSampler.reshard(again, 6, 1023)
    assert len(json.dumps(scope.state().to_dict())) < 100_000
