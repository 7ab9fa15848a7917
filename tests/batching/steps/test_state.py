import json
import random

import pytest

from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.state import StepPlannerState
from raypack.errors import SamplerError
from tests.conftest import long_tailed

JUNK = [None, True, -1, 2**70, 1.5, float("nan"), "", "x", [], {}, [[[]]], {"a": {"b": {}}}]


@pytest.fixture(scope="module")
def record():
    one = StepPlanner("s", long_tailed(50), TokenBatchOptions(64), batches_per_step=2, seed=1, window=64)
    one.commit(3)
    one.change(options=TokenBatchOptions(70))
    one.commit(1)
    return one.state().to_dict()


def test_a_record_comes_back_from_json_as_it_was(record):
    state = StepPlannerState.from_dict(json.loads(json.dumps(record)))
    assert state.to_dict() == record


def test_the_state_is_small_whatever_the_source(record):
    assert len(json.dumps(record)) < 1024


def test_a_thousand_mutations_of_a_record_end_in_a_sampler_error_or_an_equal_kind(record):
    rng = random.Random(0)
    for _ in range(1000):
        mutated = json.loads(json.dumps(record))
        repacked = mutated["repacked"][0]
        place = rng.choice([mutated, mutated["cursor"], mutated["options"], repacked, repacked["options"]])
        key = rng.choice(list(place))
        action = rng.randrange(3)
        if action == 0:
            del place[key]
        elif action == 1:
            place[key] = rng.choice(JUNK)
        else:
            place["unknown"] = rng.choice(JUNK)
        try:
            StepPlannerState.from_dict(mutated)
        except SamplerError:
            continue
        assert action == 1, mutated  # another legal value of the same field


@pytest.mark.parametrize("junk", JUNK)
def test_what_is_no_record_is_refused(junk):
    with pytest.raises(SamplerError, match="step planner state"):
        StepPlannerState.from_dict(junk)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": None}, "window must be given"),
        ({"packing": "greedy"}, "window must be given"),
        ({"packing": "greedy", "window": None}, r"cursor\.batches and repacked must be empty"),
        ({"cursor": {"steps": 1, "position": 50, "batches": 2}}, r"cursor\.batches and repacked must be"),
        ({"cursor": {"steps": 1, "position": 9, "batches": 2}}, "must be the first of a window of 64"),
        ({"repacked": {}}, "repacked must be a list"),
        ({"repacked": "x"}, "repacked must be a list"),
        ({"repacked": [None] * 65}, "repacked must be a list of at most 64"),
    ],
)
def test_a_window_a_cursor_and_what_was_repacked_must_fit_together(record, wrong, message):
    with pytest.raises(SamplerError, match=message):
        StepPlannerState.from_dict({**record, **wrong})


def test_a_cursor_beyond_the_source_is_refused(record):
    with pytest.raises(SamplerError, match=r"cursor\.position"):
        StepPlannerState.from_dict({**record, "cursor": {"steps": 1, "position": 51, "batches": 0}})
