"""Loaders of one attempt without Ray: ranks out of step, deaths of the planner, ends of the stream."""

import pytest

from raypack.train import PackedData
from tests.conftest import long_tailed
from tests.train.local_run import Attempt, patch


@pytest.fixture(autouse=True)
def local(monkeypatch):
    patch(monkeypatch)


@pytest.fixture
def source(make_source):
    return make_source(long_tailed(400))


def recipe_of(source, **more):
    return PackedData(
        **{
            "source": source,
            "maximum_tokens": 64,
            "batches_per_step": 4,
            "seed": 1,
            "backend": "direct",
            **more,
        }
    )


def take(steps, count):
    """Train some steps of a rank and return their numbers."""
    out = []
    for _ in range(count):
        step = next(steps)
        list(step)
        step.commit()
        out.append(step.index)
    return out


# -- ranks out of step -----------------------------------------------------------------------------


def test_a_rank_that_begins_late_finds_its_steps_though_another_is_far_ahead(source):
    with Attempt(recipe_of(source, ahead=2), source, 2) as run:
        early, late = map(iter, run.loaders)
        assert take(early, 9) == list(range(9))
        assert take(late, 12) == list(range(12))
        assert take(early, 3) == [9, 10, 11]


def test_a_planner_that_dies_while_ranks_are_out_of_step_serves_both(source):
    with Attempt(recipe_of(source, ahead=2), source, 2) as run:
        early, late = map(iter, run.loaders)
        take(late, 2)
        take(early, 8)
        run.actor.die()
        assert take(early, 2) == [8, 9]
        assert take(late, 9) == list(range(2, 11))


def test_a_planner_forgets_what_the_staying_ranks_have_committed(source):
    with Attempt(recipe_of(source, ahead=2, epochs=5), source, 2) as run:
        stays, leaves = map(iter, run.loaders)
        take(leaves, 1)
        run.loaders[1].close()
        take(stays, 60)
        assert len(run.actor.actor._plans._planned) < 4
