"""Loaders of one attempt without Ray: ranks out of step, deaths of the planner, ends of the stream."""

import pytest
import torch

from raypack.errors import LoaderError, StreamError
from raypack.train import PackedData
from tests.conftest import long_tailed
from tests.support.local_run import Attempt, patch


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


# -- ends ------------------------------------------------------------------------------------------


def test_after_an_error_of_the_stream_that_was_caught_a_second_loop_is_no_end_of_the_run(source):
    with Attempt(recipe_of(source, batches_per_step=1, ahead=4), source, 1) as run:
        take(iter(run.loaders[0]), 2)
        run.loaders[0]._stream._blocks.put(OSError("the disk is gone"))
        with pytest.raises(OSError, match="the disk is gone"):
            take(iter(run.loaders[0]), 100)
        with pytest.raises(StreamError, match=r"ended after \d+ steps of epoch 0, but the run has not"):
            list(run.loaders[0])


def test_a_loop_that_outlives_its_loader_is_refused(source):
    with Attempt(recipe_of(source), source, 1) as run:
        steps = iter(run.loaders[0])
        take(steps, 1)
        run.loaders[0].close()
        with pytest.raises(LoaderError, match="the loader is closed"):
            next(steps)


@pytest.mark.parametrize("epochs", [1, 2])
def test_an_empty_source_has_no_step(make_source, epochs):
    source = make_source([])
    with Attempt(recipe_of(source, epochs=epochs), source, 2) as run:
        assert [list(loader) for loader in run.loaders] == [[], []]


def test_a_run_that_now_has_fewer_epochs_than_it_has_begun_has_no_step(source, tmp_path):
    with Attempt(recipe_of(source, epochs=2), source, 1) as run:
        steps = iter(run.loaders[0])
        while run.loaders[0]._deal.epoch == 0:
            take(steps, 1)
        checkpoint = run.save(tmp_path, "a" * 32)
    with Attempt(recipe_of(source, epochs=1), source, 2, checkpoint) as run:
        assert [list(loader) for loader in run.loaders] == [[], []]


def test_a_broken_loop_goes_on_in_a_second_one(source):
    with Attempt(recipe_of(source), source, 1) as run:
        first = take(iter(run.loaders[0]), 3)
        rest = []
        for step in run.loaders[0]:
            list(step)
            step.commit()
            rest.append(step.index)
        assert first + rest == list(range(len(first + rest)))
        assert run.loaders[0].report_payload()["step"] == len(first + rest)


def test_a_loop_that_has_used_sync_is_refused_in_a_later_step_without(source):
    with Attempt(recipe_of(source), source, 2) as run:
        steps, model = iter(run.loaders[0]), torch.nn.Linear(1, 1)
        step = next(steps)
        for batch in step:
            with step.sync(model, batch):
                pass
        step.commit()
        step = next(steps)
        list(step)
        with pytest.raises(LoaderError, match=r"step 1: micro-batch 0 of 2 was not passed to step\.sync"):
            step.commit()


def test_a_loop_that_has_left_out_sync_in_its_first_step_is_refused_when_it_uses_it(source):
    with Attempt(recipe_of(source), source, 2) as run:
        steps, model = iter(run.loaders[0]), torch.nn.Linear(1, 1)
        list(step := next(steps))
        step.skip()  # trains nothing, so says nothing of the loop
        list(step := next(steps))
        step.commit()
        step = next(steps)
        with pytest.raises(LoaderError, match=r"step 2 uses step\.sync, but a step before it was committed"):
            step.sync(model, next(iter(step)))


def test_max_steps_ends_the_run_and_a_later_attempt_counts_what_was_done(source, tmp_path):
    recipe = recipe_of(source, max_steps=5)
    with Attempt(recipe, source, 2) as run:
        iters = [iter(loader) for loader in run.loaders]
        for steps in iters:
            assert take(steps, 3) == [0, 1, 2]
        checkpoint = run.save(tmp_path, "a" * 32)
    with Attempt(recipe, source, 1, checkpoint) as run:
        steps = iter(run.loaders[0])
        assert take(steps, 2) == [3, 4]
        assert next(steps, None) is None
        assert run.loaders[0].progress == 1.0


def test_tokens_total_is_the_source_times_the_epochs_and_skipped_steps_count_as_done(source):
    with Attempt(recipe_of(source, epochs=2), source, 1) as run:
        (loader,) = run.loaders
        assert loader.tokens_total == 2 * source.manifest.tokens
        for step in loader:
            if step.index % 5 == 2:
                step.skip()
            else:
                list(step)
                step.commit()
        assert loader.tokens_done == loader.tokens_total
        assert loader.progress == 1.0


@pytest.mark.parametrize("world_size", [1, 3])
def test_each_rank_is_told_how_even_a_step_is(source, world_size):
    with Attempt(recipe_of(source), source, world_size) as run:
        planner = run.loaders[0]._deal._planner
        for steps in zip(*map(iter, run.loaders), strict=True):
            (planned,) = planner.steps(0, 1)
            cost = dict(zip(map(id, planned.batches), planned.costs(), strict=True))
            loads = [sum(cost.get(id(plan), 0) for plan in rank) for rank in planned.deal(world_size)]
            expected = max(loads) * world_size / sum(loads)
            for step in steps:
                assert step.imbalance == pytest.approx(expected, abs=1e-6)
                list(step)
                step.commit()
