"""Issuing, committing, rewinding and loading, points 12 to 26 of the contract."""

import numpy as np
import pytest

from raypack.errors import SamplerError
from raypack.sampling import StatefulShardSampler
from tests.support.worlds import Rows, picture


def shard(**options):
    """Shard 0, 4, 8 of ten examples over four ranks."""
    return StatefulShardSampler("source", 10, rank=0, world_size=4, **options)


def test_next_indices_gives_what_is_left_and_then_none():
    sampler = shard()
    assert sampler.next_indices(2).tolist() == [0, 4]
    assert sampler.next_indices(2).tolist() == [8]
    assert sampler.next_indices(2) is None


@pytest.mark.parametrize("count", [0, -1])
def test_asking_for_nothing_is_refused(count):
    sampler = shard()
    before = picture(sampler)
    with pytest.raises(SamplerError, match="count"):
        sampler.next_indices(count)
    assert picture(sampler) == before


@pytest.mark.parametrize("count", [1.0, True, None, "1"])
def test_asking_in_another_type_is_a_type_error(count):
    with pytest.raises(TypeError, match="count"):
        shard().next_indices(count)


def test_a_request_above_what_is_left_gets_what_is_left():
    assert shard().next_indices(2**70).tolist() == [0, 4, 8]


def test_issuing_leaves_committed_and_shrinks_the_unissued():
    sampler = shard()
    sampler.next_indices(2)
    assert sampler.committed == 0
    assert sampler.unissued_indices().tolist() == [8]
    assert sampler.unissued_indices(0).tolist() == []
    assert sampler.unissued_indices(5).tolist() == [8]


def test_a_commit_moves_committed_only():
    sampler = shard()
    sampler.next_indices(2)
    sampler.commit(1)
    assert (sampler.committed, sampler.issued, sampler.remaining) == (1, 2, 2)


def test_a_commit_above_what_is_issued_is_refused():
    sampler = shard()
    sampler.next_indices(2)
    before = picture(sampler)
    for examples in (3, -1, 2**80):
        with pytest.raises(SamplerError, match="examples"):
            sampler.commit(examples)
    assert picture(sampler) == before


def test_a_commit_of_nothing_changes_nothing_and_commits_add_up():
    one, two = shard(), shard()
    for sampler in (one, two):
        sampler.next_indices(3)
    one.commit(0)
    assert one.committed == 0
    one.commit(1)
    one.commit(1)
    two.commit(2)
    assert picture(one) == picture(two)


def test_a_rewind_brings_the_same_indices_again():
    sampler = shard()
    sampler.next_indices(3)
    sampler.commit(1)
    sampler.rewind_uncommitted()
    assert sampler.issued == 1
    assert sampler.next_indices(2).tolist() == [4, 8]


def test_a_rewind_of_nothing_changes_nothing():
    sampler = shard()
    sampler.next_indices(1)
    sampler.commit(1)
    before = picture(sampler)
    sampler.rewind_uncommitted()
    assert picture(sampler) == before


def test_iteration_gives_one_index_at_a_time_and_issues_only():
    sampler = shard()
    found = []
    for index in sampler:
        found.append(index)
        assert sampler.issued == len(found)
    assert found == [0, 4, 8]
    assert sampler.committed == 0


def test_what_is_returned_is_the_callers_own():
    sampler = shard(seed=1)
    before = picture(sampler)
    sampler.unissued_indices()[:] = 99
    with pytest.raises(ValueError, match="read-only"):
        sampler.indices[:] = 99
    with pytest.raises(ValueError, match="read-only"):
        sampler.state().head[:] = 99
    with pytest.raises(AttributeError):
        sampler.state().committed = 2
    sampler.state().to_dict()["committed"] = 2
    assert picture(sampler) == before
    first = sampler.next_indices(1)
    first[:] = 99
    sampler.rewind_uncommitted()
    assert sampler.next_indices(1)[0] != 99


def test_loading_follows_the_indices_and_issues_them():
    sampler = shard()
    assert sampler.load_next(Rows(10), 2) == ["row 0", "row 4"]
    assert sampler.issued == 2


def test_a_dataset_of_another_length_is_refused():
    sampler = shard()
    for length in (9, 11):
        with pytest.raises(SamplerError, match="dataset"):
            sampler.load_next(Rows(length), 2)
    assert sampler.issued == 0


@pytest.mark.parametrize("dataset", [Rows(10, missing={4}), [*range(1, 5), None, *range(5)]])
def test_a_missing_row_issues_nothing_and_a_retry_gives_the_same(dataset):
    sampler = shard()
    with pytest.raises(SamplerError, match="row 4"):
        sampler.load_next(dataset, 2)
    assert sampler.issued == 0
    assert sampler.load_next(Rows(10), 2) == ["row 0", "row 4"]


def test_loading_nothing_is_refused_and_the_end_is_none():
    sampler = shard()
    with pytest.raises(SamplerError, match="count"):
        sampler.load_next(Rows(10), 0)
    sampler.load_next(Rows(10), 3)
    assert sampler.load_next(Rows(10), 1) is None


def test_reading_in_any_pieces_gives_the_same_order():
    whole = StatefulShardSampler("source", 100_003, rank=2, world_size=3, seed=8).indices
    sampler = StatefulShardSampler("source", 100_003, rank=2, world_size=3, seed=8)
    pieces = []
    for count in (1, 4095, 4096, 4097, 10, 20_000, 1):
        ahead = sampler.unissued_indices(count + 5)
        pieces.append(sampler.next_indices(count))
        assert np.array_equal(ahead[:count], pieces[-1])
    found = np.concatenate(pieces)
    assert np.array_equal(found, whole[: len(found)])
