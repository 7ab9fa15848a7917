"""Token batches of one rank, points 56 to 78 of the contract."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching import (
    ConsolidatedTokenBatchState,
    LengthTable,
    StatefulTokenBatchSampler,
    TokenBatchOptions,
    TokenBatchPlan,
    TokenBatchState,
)
from raypack.errors import SamplerError
from raypack.sampling import ConsolidatedSamplerState, StatefulShardSampler
from tests.support.worlds import Rows, changed

LENGTHS = [3, 5, 2, 4, 1, 6]


def batches(lengths=LENGTHS, budget=10, *, rank=0, world_size=1, seed=None, **options):
    sampler = StatefulShardSampler("source", len(lengths), rank=rank, world_size=world_size, seed=seed)
    return StatefulTokenBatchSampler(sampler, lengths, TokenBatchOptions(budget, **options))


def world(lengths, budget, world_size, **options):
    return [
        batches(lengths, budget, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]


def all_plans(sampler):
    return sampler.plans(0, 10**6)


def indices(sampler):
    return [plan.indices.tolist() for plan in all_plans(sampler)]


def figures(sampler):
    return [
        (plan.indices.tolist(), plan.real_tokens, plan.maximum_sequence_length, plan.token_slots)
        for plan in all_plans(sampler)
    ]


def picture(sampler):
    return sampler.state(), sampler.sampler.issued, sampler.peek(), indices(sampler)


def consolidate(samplers):
    return ConsolidatedTokenBatchState.consolidate([sampler.state() for sampler in samplers])


def longest_prefix(lengths, budget, maximum_examples, layout):
    """How many of the first examples fit, by trying every number."""
    best = 0
    for count in range(1, len(lengths) + 1):
        part = lengths[:count]
        cost = sum(part) if layout == "packed" else count * max(part)
        if cost <= budget and (maximum_examples is None or count <= maximum_examples):
            best = count
    return best


def test_packed_batches_cost_the_sum_of_their_lengths():
    assert figures(batches()) == [([0, 1, 2], 10, 5, 10), ([3, 4], 5, 4, 5), ([5], 6, 6, 6)]


def test_padded_batches_cost_rows_times_the_longest():
    assert figures(batches(layout="padded")) == [
        ([0, 1], 8, 5, 10),
        ([2, 3], 6, 4, 8),
        ([4], 1, 1, 1),
        ([5], 6, 6, 6),
    ]


def test_the_number_of_examples_is_a_limit_of_its_own():
    assert indices(batches(maximum_examples=2)) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_cost_equal_to_the_budget_fits(layout):
    assert indices(batches([5, 5, 10, 1], 10, layout=layout)) == [[0, 1], [2], [3]]


def test_a_longer_row_can_make_padding_too_dear():
    assert indices(batches([1, 5], 9, layout="padded")) == [[0], [1]]


def test_nothing_is_pulled_forward():
    assert indices(batches([6, 9, 1], 10)) == [[0], [1, 2]]


@given(
    lengths=st.lists(st.integers(1, 12), max_size=80),
    budget=st.integers(12, 40),
    maximum_examples=st.none() | st.integers(1, 6),
    layout=st.sampled_from(["packed", "padded"]),
    seed=st.none() | st.integers(0, 3),
)
def test_a_plan_is_the_longest_prefix_that_fits(lengths, budget, maximum_examples, layout, seed):
    sampler = batches(lengths, budget, maximum_examples=maximum_examples, layout=layout, seed=seed)
    left = sampler.sampler.unissued_indices().tolist()
    planned = all_plans(sampler)
    assert sampler.remaining_batches() == len(planned)
    for expected in planned:
        ahead = [lengths[index] for index in left]
        count = longest_prefix(ahead, budget, maximum_examples, layout)
        assert sampler.peek() == sampler.next_plan() == expected
        assert expected.indices.tolist() == left[:count]
        assert expected.real_tokens == sum(ahead[:count])
        assert expected.maximum_sequence_length == max(ahead[:count])
        assert expected.token_slots == (
            sum(ahead[:count]) if layout == "packed" else count * max(ahead[:count])
        )
        left = left[count:]
    assert left == []
    assert sampler.next_plan() is None


def test_limits_are_positive_or_none():
    for fields in ({"maximum_tokens": 0}, {"maximum_tokens": 5, "maximum_examples": 0}):
        with pytest.raises(SamplerError, match="at least 1"):
            TokenBatchOptions(**fields)
    assert TokenBatchOptions(5).maximum_examples is None


def test_an_empty_or_oversize_example_is_named():
    with pytest.raises(SamplerError, match="index 1;"):
        batches([3, 0, 11, 0], 10)
    with pytest.raises(SamplerError, match="index 2;"):
        batches([3, 1, 11, 12], 10)
    with pytest.raises(SamplerError, match="index 0;"):
        batches([11, 0], 10)


def test_a_table_of_another_size_is_refused():
    sampler = StatefulShardSampler("source", 5)
    with pytest.raises(SamplerError, match="one entry per example"):
        StatefulTokenBatchSampler(sampler, LENGTHS, TokenBatchOptions(10))


def test_a_peek_moves_nothing():
    sampler = batches()
    assert sampler.peek() == sampler.peek()
    assert (sampler.sampler.issued, sampler.sampler.committed) == (0, 0)


def test_a_plan_issues_its_examples_only():
    sampler = batches()
    assert len(sampler.next_plan()) == 3
    assert (sampler.sampler.issued, sampler.sampler.committed) == (3, 0)


def test_an_exhausted_or_empty_shard_has_no_plan():
    sampler = batches()
    while sampler.next_plan() is not None:
        pass
    for finished in (sampler, batches([]), world([4], 10, 2)[1]):
        assert finished.peek() is None
        assert finished.next_plan() is None
        assert finished.load_next(Rows(finished.sampler.source_length)) is None
    assert all_plans(batches([])) == []
    assert batches([]).remaining_batches() == 0


def test_plans_follow_the_shuffled_order_and_lengths_the_source():
    sampler = batches(seed=1)
    order = sampler.sampler.indices.tolist()
    assert order != sorted(order)
    planned = all_plans(sampler)
    assert [index for plan in planned for index in plan.indices] == order
    for plan in planned:
        assert plan.real_tokens == sum(LENGTHS[index] for index in plan.indices)


def test_loading_gives_the_plans_items_and_a_failure_changes_nothing():
    sampler = batches()
    before = picture(sampler)
    with pytest.raises(SamplerError, match="row 1"):
        sampler.load_next(Rows(6, missing={1}))
    with pytest.raises(SamplerError, match="dataset"):
        sampler.load_next(Rows(7))
    with pytest.raises(ZeroDivisionError):
        sampler.load_batch(Rows(6), lambda items, device: 1 / 0, "cpu")
    assert picture(sampler) == before
    batch = sampler.load_next(Rows(6))
    assert batch.plan.indices.tolist() == [0, 1, 2]
    assert batch.items == ["row 0", "row 1", "row 2"]
    assert sampler.load_batch(Rows(6), lambda items, device: (device, *items), "cpu") == (
        TokenBatchPlan([3, 4], 5, 4, 5),
        ("cpu", "row 3", "row 4"),
    )
    assert sampler.sampler.issued == 5


def test_batches_that_were_issued_only_come_again():
    sampler = batches()
    first = sampler.next_plan()
    sampler.next_plan()
    again = StatefulTokenBatchSampler.from_state(sampler.state(), LENGTHS)
    assert again.next_plan() == first


@given(stop=st.integers(0, 6), seed=st.integers(0, 5))
def test_restored_plans_equal_the_uninterrupted_ones(stop, seed):
    whole = all_plans(batches(seed=seed))
    sampler = batches(seed=seed)
    for _ in range(min(stop, len(whole))):
        sampler.commit(len(sampler.next_plan()))
    again = StatefulTokenBatchSampler.from_state(sampler.state(), LENGTHS)
    assert all_plans(again) == whole[stop:]
    assert again.remaining_batches() == len(whole[stop:])


def test_a_commit_inside_a_batch_moves_the_batches():
    sampler = batches([2, 2, 2, 2], 4)
    sampler.next_plan()
    sampler.commit(1)
    assert indices(StatefulTokenBatchSampler.from_state(sampler.state(), [2, 2, 2, 2])) == [[1, 2], [3]]
    assert indices(sampler) == [[1, 2], [3]]
    assert sampler.peek().indices.tolist() == [2, 3]


@pytest.mark.parametrize(
    "other",
    [batches([3, 5, 2, 4, 6, 1]), batches(budget=11), batches(maximum_examples=4), batches(layout="padded")],
)
def test_a_state_of_other_lengths_or_options_is_refused(other):
    sampler = batches()
    sampler.next_plan()
    before = picture(sampler)
    with pytest.raises(SamplerError, match=r"options|digest"):
        sampler.load_state(other.state())
    assert picture(sampler) == before


def test_a_state_of_another_rank_is_refused_and_one_of_this_rank_taken():
    one, two = world(LENGTHS, 10, 2)
    one.next_plan()
    before = picture(one)
    with pytest.raises(SamplerError, match="rank"):
        one.load_state(two.state())
    assert picture(one) == before
    one.commit(1)
    fresh = world(LENGTHS, 10, 2)[0]
    fresh.load_state(one.state())
    assert fresh.state() == one.state()
    assert fresh.sampler.issued == 1


def test_a_record_of_another_version_or_a_table_of_another_size_is_refused():
    state = batches().state()
    with pytest.raises(SamplerError, match="version"):
        changed(state, version=2)
    for table in (LENGTHS[:5], [*LENGTHS, 1]):
        with pytest.raises(SamplerError, match="one entry per example"):
            StatefulTokenBatchSampler.from_state(state, table)
    with pytest.raises(SamplerError, match="digest"):
        StatefulTokenBatchSampler.from_state(state, LENGTHS[::-1])


def test_a_fault_of_the_sampler_is_reported_first():
    record = batches().state().to_dict()
    record["version"] = 2
    record["sampler"]["committed"] = 7
    with pytest.raises(SamplerError, match="committed"):
        TokenBatchState.from_dict(record)


def test_ranks_with_other_lengths_or_options_are_no_one_world():
    one, two = world(LENGTHS, 10, 2)
    for strange in (
        batches([*LENGTHS[:5], 5], rank=1, world_size=3),
        batches(budget=11, rank=1, world_size=3),
    ):
        with pytest.raises(SamplerError, match=r"lengths_digest|options"):
            ConsolidatedTokenBatchState.consolidate([one.state(), strange.state()])
    with pytest.raises(SamplerError, match="none"):
        ConsolidatedTokenBatchState.consolidate([])
    with pytest.raises(SamplerError, match="missing are 0"):
        ConsolidatedTokenBatchState.consolidate([two.state()])
    with pytest.raises(TypeError, match="TokenBatchState"):
        ConsolidatedTokenBatchState.consolidate([one.sampler.state()])


def test_what_remains_is_batched_anew_over_the_new_world():
    lengths = [4, 4, 2, 2, 6, 2, 3, 1]
    samplers = world(lengths, 6, 2)
    for sampler, examples in zip(samplers, (2, 1), strict=True):
        sampler.next_plan()
        sampler.commit(examples)
    consolidated = consolidate(samplers)
    assert ConsolidatedTokenBatchState.from_dict(consolidated.to_dict()) == consolidated
    dealt = [StatefulTokenBatchSampler.reshard(consolidated, rank, 3, lengths) for rank in range(3)]
    assert [indices(sampler) for sampler in dealt] == [[[3, 6]], [[4], [7]], [[5]]]
    with pytest.raises(SamplerError, match="digest"):
        StatefulTokenBatchSampler.reshard(consolidated, 0, 3, lengths[::-1])


def test_ranks_with_fewer_batches_get_no_filler():
    one, two = world([5, 1, 5, 1, 5, 1], 6, 2)
    assert (one.remaining_batches(), two.remaining_batches()) == (3, 1)
    assert all(len(plan) for plan in all_plans(two))


def test_plans_are_counted_from_the_committed_state_and_ask_nothing_of_issuing():
    sampler = batches(seed=2)
    whole = all_plans(sampler)
    assert [sampler.plans(number, number + 1) for number in range(len(whole))] == [[plan] for plan in whole]
    assert sampler.plans(2, 9) == whole[2:]
    assert sampler.plans(50, 60) == sampler.plans(1, 1) == []
    sampler.next_plan()
    assert all_plans(sampler) == whole
    sampler.commit(len(whole[0]))
    assert sampler.plans(0, 1) == [whole[1]]
    for start, stop in ((-1, 2), (2, 1)):
        with pytest.raises(SamplerError, match=r"start|stop"):
            sampler.plans(start, stop)


def test_a_new_epoch_or_a_rewind_plans_anew():
    sampler = batches(seed=2)
    first = sampler.next_plan()
    sampler.rewind_uncommitted()
    assert sampler.next_plan() == first
    sampler.start_epoch(1)
    fresh = StatefulShardSampler("source", 6, seed=2, epoch=1)
    assert all_plans(sampler) == all_plans(StatefulTokenBatchSampler(fresh, LENGTHS, TokenBatchOptions(10)))


def test_long_orders_are_planned_in_stretches_as_if_at_once():
    lengths = LengthTable(np.random.default_rng(0).integers(1, 60, 30_000).astype(np.int32))
    sampler = batches(lengths, 100, seed=4)
    whole = all_plans(sampler)
    assert sampler.remaining_batches() == len(whole)
    stepwise = []
    while (plan := sampler.next_plan()) is not None:
        stepwise.append(plan)
        sampler.commit(len(plan))
    assert stepwise == whole
    giant = batches(np.ones(5000, np.int32), 2**63 - 1)
    assert len(giant.peek()) == 5000


@given(
    lengths=st.lists(st.integers(1, 9), max_size=60),
    worlds=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    seed=st.none() | st.integers(0, 5),
    data=st.data(),
)
def test_any_chain_of_batches_and_reshards_trains_each_example_once(lengths, worlds, seed, data):
    samplers = world(lengths, 9, worlds[0], seed=seed)
    trained = []
    for size in [*worlds[1:], 1]:
        for sampler in samplers:
            for _ in range(data.draw(st.integers(0, 4))):
                plan = sampler.next_plan()
                if plan is not None and data.draw(st.booleans()):
                    sampler.rewind_uncommitted()
                    plan = sampler.next_plan()
                    sampler.commit(len(plan))
                    trained += plan.indices.tolist()
        consolidated = consolidate(samplers)
        samplers = [
            StatefulTokenBatchSampler.reshard(consolidated, rank, size, lengths) for rank in range(size)
        ]
    trained += [index for plan in all_plans(samplers[0]) for index in plan.indices]
    assert sorted(trained) == list(range(len(lengths)))
    assert isinstance(consolidated.sampler, ConsolidatedSamplerState)
