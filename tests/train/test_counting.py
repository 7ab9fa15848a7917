import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.planner import StepPlanner
from raypack.errors import SamplerError
from raypack.source import open_source
from raypack.source.paths.location import locate
from raypack.train import PackedData, counting, kept_counts
from tests.conftest import long_tailed
from tests.support.local_run import Attempt, patch

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
    return sorted((Path(source.path) / kept_counts.FOLDER).iterdir())


def test_a_count_is_kept_once_for_all_step_sizes_and_anew_for_other_terms(source):
    for size in (2, 3):
        PackedData(source=source.path, maximum_tokens=64, batches_per_step=size).count_steps()
    assert len(counts_of(source)) == 1
    for terms in ({"seed": 5}, {"maximum_tokens": 65}, {"window": 64}, {"shuffle": "block"}):
        PackedData(
            **{"source": source.path, "maximum_tokens": 64, "batches_per_step": 2, **terms}
        ).count_steps()
    assert len(counts_of(source)) == 5


FALSE = [
    lambda kept: "",
    lambda kept: "{",
    lambda kept: "[]",
    lambda kept: json.dumps({**kept, "batches": -1}),
    lambda kept: json.dumps({**kept, "batches": "9"}),
    lambda kept: json.dumps({"batches": kept["batches"]}),
    lambda kept: json.dumps({**kept, "batches": kept["batches"] + 1}),  # edited
    lambda kept: json.dumps(record_of("0" * 32, kept["batches"])),  # of another name
    lambda kept: json.dumps(record_of(kept["of"], 1)),  # fewer than hold the tokens
    lambda kept: json.dumps(record_of(kept["of"], COUNT)),  # more than any packing makes
    lambda kept: json.dumps(record_of(kept["of"], 10**300)),
]


def record_of(key, batches):
    """A record that is whole, of a count that may be false."""
    return {"of": key, "batches": batches, "digest": kept_counts._digest(key, batches)}


@pytest.mark.parametrize("false", FALSE)
def test_a_kept_count_that_is_damaged_or_cannot_be_true_is_made_again(source, false, caplog, lenient):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4)
    expected = recipe.count_steps()
    (kept,) = counts_of(source)
    true = kept.read_text()
    kept.write_text(false(json.loads(true)))
    assert recipe.count_steps() == expected
    assert "not believed" in caplog.text
    assert kept.read_text() == true


@pytest.mark.parametrize("terms", [{}, {"packing": "greedy"}, {"layout": "padded"}, {"maximum_examples": 2}])
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=60), budget=st.integers(20, 60))
def test_a_true_count_lies_within_its_limits(terms, lengths, budget):
    options = {name: terms[name] for name in ("layout", "maximum_examples") if name in terms}
    packing = terms.get("packing", "best_fit")
    window = 7 if packing == "best_fit" else None
    planner = StepPlanner(
        "s",
        lengths,
        TokenBatchOptions(budget, **options),
        batches_per_step=1,
        packing=packing,
        window=window,
        seed=1,
    )
    limits = kept_counts.limits_of(len(lengths), sum(lengths), planner)
    assert limits.least <= planner.remaining_batches() <= limits.most


def test_writers_of_one_count_at_once_leave_it_whole(source):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4)
    expected = recipe.count_steps()
    (kept,) = counts_of(source)
    key, batches = kept.stem, json.loads(kept.read_text())["batches"]
    limits = kept_counts.Limits(batches, batches)

    def write_and_read(_):
        kept_counts.keep_count(source.path, key, batches)
        return kept_counts.kept_count(source.path, key, limits)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(write_and_read, range(200))) == {batches}
    assert counts_of(source) == [kept]
    assert recipe.count_steps() == expected


def test_a_source_that_cannot_be_written_is_counted_all_the_same(source, lenient):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4)
    (Path(source.path) / kept_counts.FOLDER).write_text("a file where the folder would be")
    assert recipe.count_steps() == planned_steps(source, recipe, 4)


def test_kept_counts_leave_the_source_what_it_is(source):
    PackedData(source=source.path, maximum_tokens=64, batches_per_step=4).count_steps()
    assert open_source(source.path).fingerprint == source.fingerprint


def test_tasks_of_ray_count_what_one_process_counts(source, monkeypatch):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4, window=32)
    expected = planned_steps(source, recipe, 4)
    begun = StepPlanner(
        source.fingerprint, source.lengths, TokenBatchOptions(64), batches_per_step=4, window=64
    )
    begun.commit(7)
    begun.change(options=TokenBatchOptions(80))
    begun.commit(1)
    assert begun.cursor.batches  # in mid-window, under another budget
    monkeypatch.setattr(counting, "_WORTH_TASKS", 1)
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        assert recipe.count_steps() == expected
        assert counting._count(begun, source.path) == begun.remaining_batches()
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


READ_AND_WRITE = [
    lambda path: kept_counts.kept_count(path, "key", kept_counts.Limits(0, 1)),
    lambda path: kept_counts.keep_count(path, "key", 1),
]


@pytest.mark.parametrize("read", READ_AND_WRITE)
def test_the_folder_of_counts_lies_in_the_source_whatever_options_its_uri_has(read, monkeypatch):
    """A wrong join would put the folder's name into the options, and the URI would be refused."""
    asked = []
    monkeypatch.setattr(kept_counts, "locate", lambda uri: asked.append(uri) or locate("memory://counts"))
    read("s3://bucket/source?region=r&scheme=http")
    assert asked == ["s3://bucket/source?region=r&scheme=http"]


# -- a run that has begun --------------------------------------------------------------------------

RUN = {"maximum_tokens": 64, "batches_per_step": 4, "seed": 1, "window": 128, "backend": "direct"}


def go_on(source, place, recipe, checkpoint, stop):
    """Train an attempt of one rank; return every count it gave, the steps it ended with, a checkpoint."""
    counts = []
    with Attempt(recipe, source, 1, checkpoint) as run:
        (loader,) = run.loaders
        counts.append(loader.count_steps())
        for step in loader:
            list(step)
            step.commit()
            counts.append(loader.count_steps())
            if loader.steps_done == stop:
                break
        return set(counts), loader.steps_done, run.save(place, f"n{loader.steps_done}")


GREEDY = {"packing": "greedy", "window": None}
IN_ORDER = {"epochs": 2, "seed": None}
CHAINS = [
    [({}, 3), ({"batches_per_step": 9}, None)],
    [({}, 3), ({"maximum_tokens": 96}, None)],
    [({"epochs": 3}, 30), ({"epochs": 3, "batches_per_step": 2, "maximum_tokens": 80}, None)],
    [(GREEDY, 5), ({**GREEDY, "batches_per_step": 3}, None)],
    [(IN_ORDER, 4), ({**IN_ORDER, "maximum_examples": 3}, None)],
    [({}, 3), ({"batches_per_step": 9}, 5), ({"batches_per_step": 9}, None)],  # changed an attempt ago
    [({}, 3), ({"maximum_tokens": 96}, 5), ({}, None)],  # changed and changed back
    [({"epochs": 9}, 30), ({"epochs": 2}, None)],
    [({"epochs": 9}, 30), ({"epochs": 1, "batches_per_step": 5}, None)],
]


@pytest.mark.parametrize("chain", CHAINS, ids=range(len(CHAINS)))
def test_a_loader_counts_the_steps_done_and_what_its_run_has_left_under_the_present_terms(
    source, tmp_path, monkeypatch, chain
):
    patch(monkeypatch)
    checkpoint, counted = None, []
    for change, stop in chain:
        recipe = PackedData(source=source, **{**RUN, **change})
        counts, done, checkpoint = go_on(source, tmp_path, recipe, checkpoint, stop)
        counted.append(counts)
    assert counted[-1] == {done}  # at the start of the last attempt and after each of its steps
    assert all(len(counts) == 1 for counts in counted)


def test_a_loader_counts_no_step_beyond_max_steps_and_none_less_than_are_done(source, tmp_path, monkeypatch):
    patch(monkeypatch)
    recipe = PackedData(source=source, max_steps=8, epochs=10**9, **RUN)
    counts, _, checkpoint = go_on(source, tmp_path, recipe, None, 6)
    assert counts == {8}
    lower = replace(recipe, batches_per_step=6, max_steps=7)
    assert go_on(source, tmp_path, lower, checkpoint, 7)[0] == {7}
    assert go_on(source, tmp_path, replace(lower, max_steps=2), checkpoint, None)[:2] == ({6}, 6)


def test_a_run_that_is_resumed_unchanged_is_counted_from_what_is_kept(source, tmp_path, monkeypatch):
    patch(monkeypatch)
    recipe = PackedData(source=source, epochs=2, **RUN)
    _, _, checkpoint = go_on(source, tmp_path, recipe, None, 5)
    monkeypatch.setattr(counting, "_count", lambda *_: pytest.fail("counted again"))
    counts, _, _ = go_on(source, tmp_path, recipe, checkpoint, 9)
    assert counts == {recipe.count_steps()}
