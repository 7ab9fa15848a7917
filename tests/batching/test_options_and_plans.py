"""Limits and plans: small records that check themselves."""

import pickle

import numpy as np
import pytest

from raypack.batching import LengthTable, TokenBatch, TokenBatchLayout, TokenBatchOptions, TokenBatchPlan
from raypack.errors import SamplerError


def test_a_layout_goes_by_its_name_too():
    assert TokenBatchOptions(10, layout="padded").layout is TokenBatchLayout.PADDED
    assert TokenBatchOptions(10).layout is TokenBatchLayout.PACKED


def test_numpy_integers_become_pythons_own():
    options = TokenBatchOptions(np.int64(10), np.uint8(3))
    assert options == TokenBatchOptions(10, 3)
    assert type(options.maximum_tokens) is int


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"maximum_tokens": 1.0}, TypeError),
        ({"maximum_tokens": True}, TypeError),
        ({"maximum_tokens": 2**63}, SamplerError),
        ({"maximum_tokens": 9, "maximum_examples": np.bool_(True)}, TypeError),
        ({"maximum_tokens": 9, "layout": "ragged"}, SamplerError),
        ({"maximum_tokens": 9, "layout": 1}, TypeError),
    ],
)
def test_options_check_themselves(fields, fault):
    with pytest.raises(fault):
        TokenBatchOptions(**fields)


@pytest.mark.parametrize("options", [TokenBatchOptions(10), TokenBatchOptions(2**63 - 1, 4, "padded")])
def test_options_come_back_from_their_dict(options):
    assert TokenBatchOptions.from_dict(options.to_dict()) == options


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"maximum_tokens": 9},
        {"maximum_tokens": 9, "maximum_examples": None, "layout": "packed", "more": 1},
        {"maximum_tokens": "9", "maximum_examples": None, "layout": "packed"},
        {"maximum_tokens": 9, "maximum_examples": None, "layout": None},
    ],
)
def test_a_damaged_dict_is_a_sampler_error(record):
    with pytest.raises(SamplerError):
        TokenBatchOptions.from_dict(record)


def test_a_table_at_the_limits_is_fine():
    TokenBatchOptions(5).validate_lengths([1, 5])
    TokenBatchOptions(5).validate_lengths(LengthTable([]))


def test_a_plan_owns_its_indices():
    indices = np.array([4, 2])
    plan = TokenBatchPlan(indices, 5, 3, 5)
    indices[:] = 0
    assert plan.indices.tolist() == [4, 2]
    assert plan.indices.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        plan.indices[0] = 1
    with pytest.raises(AttributeError):
        plan.real_tokens = 6


def test_plans_are_equal_by_value():
    plan = TokenBatchPlan([4, 2], 5, 3, 5)
    same = pickle.loads(pickle.dumps(TokenBatchPlan(np.array([4, 2], np.uint16), np.int32(5), 3, 5)))
    assert plan == same
    assert len({plan, same, TokenBatchPlan([2, 4], 5, 3, 5), TokenBatchPlan([4, 2], 5, 3, 6)}) == 3
    assert plan != "plan"
    assert len(plan) == 2


def test_an_empty_plan_takes_part_with_nothing():
    empty = TokenBatchPlan.empty()
    assert empty == TokenBatchPlan([], 0, 0, 0)
    assert len(empty) == empty.token_slots == 0


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (([1], 5, 6, 5), SamplerError),
        (([1], 5, 3, 4), SamplerError),
        (([1], 0, 0, 0), SamplerError),
        (([], 1, 1, 1), SamplerError),
        (([-1], 1, 1, 1), SamplerError),
        (([[1]], 1, 1, 1), SamplerError),
        (([1.0], 1, 1, 1), TypeError),
        (([True], 1, 1, 1), TypeError),
        (([1], 1.0, 1, 1), TypeError),
    ],
)
def test_plans_check_themselves(fields, fault):
    with pytest.raises(fault):
        TokenBatchPlan(*fields)


def test_a_batch_is_its_plan_and_its_items():
    batch = TokenBatch(TokenBatchPlan([4], 3, 3, 3), ["row 4"])
    assert batch.items == ["row 4"]
    with pytest.raises(AttributeError):
        batch.items = []
