"""Saved records of a rank, and epochs, points 27 to 39 of the contract."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.errors import SamplerError
from raypack.sampling import ConsolidatedSamplerState, ExplicitOrder, SamplerState, StatefulShardSampler
from tests.support.worlds import changed, consolidate, picture, reshard, shards, train, world


def resharded():
    """A sampler whose scope has a head: rank 0 of two, after four ranks."""
    return reshard(consolidate(train(world(10, 4, seed=3), [2, 0, 0, 1])), 2)[0]


def test_a_state_holds_what_is_committed_not_what_is_issued():
    sampler = StatefulShardSampler("source", 10)
    sampler.next_indices(3)
    sampler.commit(1)
    assert sampler.state().committed == 1
    assert StatefulShardSampler.from_state(sampler.state()).issued == 1


@pytest.mark.parametrize("sampler", [resharded(), *world(10, 3, order=[*range(9, -1, -1)]), *world(0, 2)])
def test_a_restored_sampler_has_the_state_it_was_restored_from(sampler):
    state = sampler.state()
    again = StatefulShardSampler.from_state(state)
    assert again.state() == state
    assert hash(again.state()) == hash(state)
    assert again.indices.tolist() == sampler.indices.tolist() == state.indices.tolist()
    assert SamplerState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_the_order_is_rebuilt_from_its_key_and_checked_by_its_digest():
    state = StatefulShardSampler("source", 10**12, rank=1, world_size=3, seed=4).state()
    assert len(json.dumps(state.to_dict())) < 1000
    with pytest.raises(SamplerError, match="order_digest"):
        changed(state, order_digest="0" * 32)
    with pytest.raises(SamplerError, match="order_digest"):
        changed(state, seed=5)


def test_an_explicit_order_is_in_the_state():
    order = [2, 0, 1]
    state = StatefulShardSampler("source", 3, order=order).state()
    assert state.order.indices.tolist() == order
    again = SamplerState.from_dict(state.to_dict())
    assert StatefulShardSampler.from_state(again).indices.tolist() == order


@pytest.mark.parametrize(
    "fields",
    [{"version": 2}, {"source_id": ""}, {"world_size": 0}, {"rank": 4}, {"rank": 2**70}, {"epoch": -1}],
)
def test_a_record_of_no_identity_is_refused(fields):
    with pytest.raises(SamplerError, match=next(iter(fields))):
        changed(StatefulShardSampler("source", 10, world_size=4).state(), **fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"epoch_size": 11}, "epoch_size"),
        ({"epoch_size": 9}, "epoch_size"),
        ({"carried_consumed": 1}, "carried_consumed"),
        ({"scope_size": 9}, "scope_size"),
        ({"scope_size": 11}, "scope_size"),
        ({"head_size": 4}, "head"),
        ({"head_size": 11}, "head_size"),
        ({"committed": 4}, "committed"),
        ({"committed": -1}, "committed"),
        ({"order": ExplicitOrder(range(9))}, "order"),
    ],
)
def test_counts_that_do_not_add_up_are_refused(fields, named):
    with pytest.raises(SamplerError, match=named):
        changed(StatefulShardSampler("source", 10, world_size=4).state(), **fields)


def test_a_repeated_or_outlying_index_is_refused():
    state = consolidated_with_head().state()
    assert len(state.head) == 2
    low, high = state.head.tolist()
    for head in (
        [low, low],
        [high, low],
        [-1, high],
        [low, 10**6],
        [low, state.carried_consumed + state.head_size],
    ):
        with pytest.raises(SamplerError, match="head"):
            changed(state, head=np.array(head))
    for order in ([0, 0, 1], [0, 1, 3]):
        with pytest.raises(SamplerError, match="order"):
            ExplicitOrder(order)


def consolidated_with_head():
    return reshard(consolidate(train(world(20, 4), [4, 0, 0, 4])), 3)[2]


@pytest.mark.parametrize(
    "fields",
    [
        {"source_id": "other"},
        {"source_length": 11},
        {"rank": 1},
        {"world_size": 3},
        {"seed": 2},
        {"seed": None},
        {"tail": "drop"},
        {"shuffle": "block"},
        {"seed": None, "order": range(10)},
    ],
)
def test_a_state_of_another_place_is_refused_and_says_what_to_use(fields):
    own = {"source_id": "source", "source_length": 10, "rank": 0, "world_size": 2, "seed": 1}
    sampler = StatefulShardSampler(**own)
    sampler.next_indices(2)
    before = picture(sampler)
    other = StatefulShardSampler(**{**own, **fields}).state()
    with pytest.raises(SamplerError, match=r"consolidate.*reshard"):
        sampler.load_state(other)
    assert picture(sampler) == before


def test_a_state_of_another_epoch_or_scope_is_taken():
    sampler = StatefulShardSampler("source", 10, world_size=2, seed=3)
    sampler.next_indices(5)
    other = train([StatefulShardSampler("source", 10, world_size=2, seed=3, epoch=4)], [3])[0]
    sampler.load_state(other.state())
    assert (sampler.epoch, sampler.issued, sampler.committed) == (4, 3, 3)
    assert sampler.indices.tolist() == other.indices.tolist()
    scoped = train([resharded()], [1])[0]
    sampler.load_state(scoped.state())
    assert picture(sampler) == picture(scoped)


def test_an_invalid_record_is_refused():
    sampler = StatefulShardSampler("source", 10)
    before = picture(sampler)
    broken = sampler.state()
    object.__setattr__(broken, "committed", 11)
    with pytest.raises(SamplerError, match="committed"):
        sampler.load_state(broken)
    for nonsense in (None, {}, sampler):
        with pytest.raises(TypeError, match="SamplerState"):
            sampler.load_state(nonsense)
        with pytest.raises(TypeError, match="SamplerState"):
            StatefulShardSampler.from_state(nonsense)
    assert picture(sampler) == before


def test_a_new_epoch_is_a_full_fresh_shard():
    sampler = train(world(10, 4, seed=2), [3, 3, 2, 2])[0]
    sampler.start_epoch(1)
    assert (sampler.issued, sampler.committed, sampler.remaining) == (0, 0, 3)
    assert sampler.indices.tolist() == world(10, 4, seed=2, epoch=1)[0].indices.tolist()


def test_a_new_epoch_gives_up_outstanding_work():
    sampler = StatefulShardSampler("source", 10, seed=2)
    sampler.next_indices(7)
    sampler.commit(3)
    sampler.start_epoch(1)
    assert picture(sampler) == picture(StatefulShardSampler("source", 10, seed=2, epoch=1))


@pytest.mark.parametrize("tail", ["uneven", "drop"])
def test_after_a_reshard_a_new_epoch_deals_all_over_the_new_world(tail):
    samplers = reshard(consolidate(train(world(11, 4, tail=tail, seed=1), [1, 1, 0, 2])), 3)
    for sampler in samplers:
        sampler.start_epoch(1)
    assert shards(samplers) == shards(world(11, 3, tail=tail, seed=1, epoch=1))
    assert samplers[0].state().carried_consumed == 0


def test_the_same_epoch_number_has_the_same_order():
    sampler = StatefulShardSampler("source", 50, seed=6, epoch=2)
    first = sampler.indices.tolist()
    sampler.start_epoch(3)
    assert sampler.indices.tolist() != first
    sampler.start_epoch(2)
    assert sampler.indices.tolist() == first


def test_a_wrong_epoch_changes_nothing():
    sampler = train([StatefulShardSampler("source", 10, seed=6)], [4])[0]
    before = picture(sampler)
    with pytest.raises(SamplerError, match="epoch"):
        sampler.start_epoch(-1)
    with pytest.raises(TypeError, match="epoch"):
        sampler.start_epoch(1.0)
    assert picture(sampler) == before


@given(
    length=st.integers(0, 200),
    worlds=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    seed=st.none() | st.integers(0, 9),
    shuffle=st.sampled_from(["full", "block"]),
    data=st.data(),
)
def test_records_come_back_equal_through_json(length, worlds, seed, shuffle, data):
    samplers = world(length, worlds[0], seed=seed, shuffle=shuffle)
    for size in worlds:
        consolidated = consolidate(samplers)
        assert (
            ConsolidatedSamplerState.from_dict(json.loads(json.dumps(consolidated.to_dict()))) == consolidated
        )
        samplers = reshard(consolidated, size)
        train(samplers, [data.draw(st.integers(0, sampler.remaining)) for sampler in samplers])
        for sampler in samplers:
            text = json.dumps(sampler.state().to_dict())
            again = StatefulShardSampler.from_state(SamplerState.from_dict(json.loads(text)))
            assert again.state() == sampler.state()
            assert again.unissued_indices().tolist() == sampler.unissued_indices().tolist()
