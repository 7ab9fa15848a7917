"""Which examples each rank has, points 1 to 11 of the contract."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.errors import SamplerError
from raypack.sampling import StatefulShardSampler
from tests.support.worlds import shards, world

sizes = st.integers(0, 60)
worlds = st.integers(1, 12)


def test_ten_examples_are_dealt_like_cards_over_four_ranks():
    assert shards(world(10, 4)) == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def test_drop_leaves_out_the_few_that_do_not_go_round():
    samplers = world(10, 4, tail="drop")
    assert shards(samplers) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert samplers[0].epoch_size == 8


def test_fewer_examples_than_ranks_leave_ranks_empty():
    assert shards(world(3, 4)) == [[0], [1], [2], []]
    assert shards(world(3, 4, tail="drop")) == [[], [], [], []]


def test_an_empty_source_is_legal_and_gives_none():
    assert StatefulShardSampler("source", 0).next_indices(1) is None


@given(length=sizes, world_size=worlds)
def test_shard_sizes_differ_by_one_at_the_most_larger_first(length, world_size):
    found = [len(shard) for shard in shards(world(length, world_size))]
    assert max(found) - min(found) <= 1
    assert found == sorted(found, reverse=True)


@given(length=sizes, world_size=worlds, seed=st.none() | st.integers(0, 2**64 - 1))
def test_shards_are_disjoint_and_cover_the_epoch(length, world_size, seed):
    for tail, size in (("uneven", length), ("drop", length // world_size * world_size)):
        found = [
            index for shard in shards(world(length, world_size, tail=tail, seed=seed)) for index in shard
        ]
        assert len(found) == len(set(found)) == size
        if tail == "uneven":
            assert set(found) == set(range(length))


def test_seed_and_epoch_give_one_order_on_all_ranks_and_other_epochs_another():
    def whole(epoch):
        dealt = shards(world(20, 3, seed=5, epoch=epoch))
        return [dealt[slot % 3][slot // 3] for slot in range(20)]

    alone = StatefulShardSampler("source", 20, seed=5, epoch=1).indices.tolist()
    assert whole(1) == whole(1) == alone
    assert whole(2) != whole(1)


def test_what_drop_leaves_out_varies_by_epoch():
    left_out = set()
    for epoch in range(8):
        dealt = shards(world(10, 4, seed=1, tail="drop", epoch=epoch))
        left_out.add(frozenset(range(10)) - {index for shard in dealt for index in shard})
    assert len(left_out) > 1
    assert all(len(examples) == 2 for examples in left_out)


def test_without_a_seed_every_epoch_follows_the_source():
    for epoch in (0, 1, 7):
        assert StatefulShardSampler("source", 6, epoch=epoch).indices.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "fields",
    [
        {"source_id": ""},
        {"world_size": 0},
        {"rank": 4},
        {"rank": -1},
        {"source_length": -1},
        {"seed": -1},
        {"seed": 2**64},
        {"epoch": -1},
        {"tail": "pad"},
        {"shuffle": "some"},
    ],
)
def test_an_empty_name_no_world_or_a_rank_outside_it_is_refused(fields):
    with pytest.raises(SamplerError, match=next(iter(fields))):
        StatefulShardSampler(
            **{"source_id": "source", "source_length": 9, "rank": 1, "world_size": 4, **fields}
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"rank": True},
        {"rank": 1.0},
        {"world_size": np.bool_(True)},
        {"source_length": "9"},
        {"seed": 0.5},
        {"source_id": None},
        {"tail": None},
        {"order": [0.0, 1.0]},
    ],
)
def test_wrong_types_are_type_errors(fields):
    with pytest.raises(TypeError):
        StatefulShardSampler(**{"source_id": "source", "source_length": 2, **fields})


def test_a_new_sampler_has_done_nothing():
    sampler = StatefulShardSampler("source", 10, rank=1, world_size=4, tail="drop")
    state = sampler.state()
    assert (sampler.issued, sampler.committed) == (0, 0)
    assert (state.version, state.carried_consumed) == (1, 0)
    assert state.scope_size == state.epoch_size == 8


def test_numpy_integers_are_integers():
    sampler = StatefulShardSampler("source", np.int64(10), rank=np.uint8(1), world_size=np.int32(4))
    assert sampler.indices.tolist() == [1, 5, 9]
    assert type(sampler.state().rank) is int


def test_an_explicit_order_is_dealt_as_it_is_in_every_epoch():
    order = [3, 1, 4, 0, 2]
    samplers = world(5, 2, order=order)
    assert shards(samplers) == [[3, 4, 2], [1, 0]]
    samplers[0].start_epoch(1)
    assert samplers[0].indices.tolist() == [3, 4, 2]


@pytest.mark.parametrize(
    ("order", "fields"),
    [
        ([0, 1], {}),
        ([0, 1, 1], {}),
        ([0, 1, 3], {}),
        ([0, -1, 2], {}),
        ([[0, 1, 2]], {}),
        ([0, 1, 2], {"seed": 1}),
    ],
)
def test_an_explicit_order_must_be_every_index_once_and_alone(order, fields):
    with pytest.raises(SamplerError, match="order"):
        StatefulShardSampler("source", 3, order=order, **fields)


def test_a_callers_own_array_stays_its_own():
    order = np.array([2, 0, 1])
    sampler = StatefulShardSampler("source", 3, order=order)
    order[:] = 0
    assert sampler.indices.tolist() == [2, 0, 1]
