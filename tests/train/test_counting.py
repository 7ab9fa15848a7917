import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from raypack.batching.step_planner import StepPlanner
from raypack.errors import SamplerError
from raypack.source import open_source
from raypack.source.location import locate
from raypack.train import PackedData, counting
from tests.conftest import long_tailed

COUNT = 300


@pytest.fixture
def source(make_source):
    return make_source(long_tailed(COUNT))


def planned_steps(source, recipe, size):
    """All steps of all epochs, planned."""
    total = 0
    for epoch in range(recipe.epochs):
        planner = StepPlanner(
            source.fingerprint,
            source.lengths,
            recipe.options,
            batches_per_step=size,
            packing=recipe.packing_kind,
            window=recipe.window,
            seed=recipe.seed,
            epoch=epoch,
        )
        total += len(planner.steps(0, 10**6))
    return total


@pytest.mark.parametrize("terms", [{"packing": "greedy"}, {"window": 40}, {}, {"layout": "padded"}])
@pytest.mark.parametrize("size", [1, 4, 7])
def test_the_count_is_that_of_the_plan_over_all_epochs(source, terms, size):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=size, epochs=3, **terms)
    expected = planned_steps(source, recipe, size)
    assert recipe.count_steps() == expected
    assert recipe.count_steps() == expected  # as it was kept


def test_max_steps_bounds_the_count(source):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4, max_steps=5)
    assert recipe.count_steps() == 5


def test_the_number_of_batches_a_step_may_be_given_where_the_recipe_leaves_it_open(source):
    recipe = PackedData(source=source.path, maximum_tokens=64)
    assert recipe.count_steps(batches_per_step=4) == planned_steps(source, recipe, 4)
    with pytest.raises(SamplerError, match="count_steps needs batches_per_step"):
        recipe.count_steps()
    with pytest.raises(SamplerError, match="batches_per_step must be at least 1"):
        recipe.count_steps(0)


def test_the_rank_deal_cannot_be_counted_and_the_error_says_what_to_follow(source):
    recipe = PackedData(source=source.path, maximum_tokens=64, deal="rank", batches_per_step=2)
    with pytest.raises(SamplerError, match=r"loader\.progress"):
        recipe.count_steps()


def counts_of(source):
    return sorted((Path(source.path) / counting.FOLDER).iterdir())


def test_a_count_is_kept_once_for_all_step_sizes_and_anew_for_other_terms(source):
    for size in (2, 3):
        PackedData(source=source.path, maximum_tokens=64, batches_per_step=size).count_steps()
    assert len(counts_of(source)) == 1
    for terms in ({"seed": 5}, {"maximum_tokens": 65}, {"window": 64}, {"shuffle": "block"}):
        PackedData(
            **{"source": source.path, "maximum_tokens": 64, "batches_per_step": 2, **terms}
        ).count_steps()
    assert len(counts_of(source)) == 5


@pytest.mark.parametrize("junk", ["", "{", "[]", '{"batches": -1}', '{"batches": "9"}'])
def test_a_kept_count_that_is_damaged_is_made_again(source, junk, caplog):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4)
    expected = recipe.count_steps()
    (kept,) = counts_of(source)
    kept.write_text(junk)
    assert recipe.count_steps() == expected
    assert "unreadable" in caplog.text
    assert json.loads(kept.read_text())["batches"] > 0


def test_a_source_that_cannot_be_written_is_counted_all_the_same(source):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4)
    (Path(source.path) / counting.FOLDER).write_text("a file where the folder would be")
    assert recipe.count_steps() == planned_steps(source, recipe, 4)


def test_kept_counts_leave_the_source_what_it_is(source):
    PackedData(source=source.path, maximum_tokens=64, batches_per_step=4).count_steps()
    assert open_source(source.path).fingerprint == source.fingerprint


def test_tasks_of_ray_count_what_one_process_counts(source, monkeypatch):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4, window=32)
    expected = planned_steps(source, recipe, 4)
    monkeypatch.setattr(counting, "_WORTH_TASKS", 1)
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        assert recipe.count_steps() == expected
    finally:
        ray.shutdown()


def test_epochs_beyond_max_steps_are_not_counted(source):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4, epochs=10**9, max_steps=50)
    assert recipe.count_steps() == 50
    assert len(counts_of(source)) < 10


def test_in_source_order_all_epochs_are_one_count(source):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4, epochs=7, seed=None)
    assert recipe.count_steps() == 7 * planned_steps(source, replace(recipe, epochs=1), 4)
    assert len(counts_of(source)) == 1


@pytest.mark.parametrize("read", [counting._read, lambda source, key: counting._write(source, key, 1)])
def test_the_folder_of_counts_lies_in_the_source_whatever_options_its_uri_has(read, monkeypatch):
    """A wrong join would put the folder's name into the options, and the URI would be refused."""
    asked = []
    monkeypatch.setattr(counting, "locate", lambda uri: asked.append(uri) or locate("memory://counts"))
    read(SimpleNamespace(path="s3://bucket/source?region=r&scheme=http"), "key")
    assert asked == ["s3://bucket/source?region=r&scheme=http"]
