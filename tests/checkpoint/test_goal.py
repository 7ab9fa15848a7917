"""What a checkpoint says a run is to do."""

import json

import pytest

from raypack.checkpoint.goal import Goal
from raypack.errors import CheckpointError
from raypack.train.recipe import PackedData


@pytest.mark.parametrize("goal", [Goal(epochs=3), Goal(epochs=1, max_steps=7)])
def test_a_goal_comes_back_from_json_as_it_was(goal):
    assert Goal.from_dict(json.loads(json.dumps(goal.to_dict()))) == goal


def test_a_recipe_has_the_goal_of_its_run(source):
    assert PackedData(source=source, maximum_tokens=64, epochs=3, max_steps=7).goal == Goal(
        epochs=3, max_steps=7
    )


@pytest.fixture
def source(make_source):
    return make_source([5, 6])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "goal must be an object"),
        ({"epochs": 1}, r"missing fields \['max_steps'\]"),
        ({"epochs": 1, "max_steps": None, "extra": 1}, "unknown fields"),
        ({"epochs": 0, "max_steps": None}, "goal.epochs must be at least 1, got 0"),
        ({"epochs": 2**63, "max_steps": None}, "goal.epochs must be at most"),
        ({"epochs": 1, "max_steps": 0}, "goal.max_steps must be at least 1, got 0"),
    ],
)
def test_what_is_no_goal_is_refused(values, message):
    with pytest.raises(CheckpointError, match=message):
        Goal.from_dict(values)
