import pickle
from pathlib import Path

import pytest

from raypack.errors import SamplerError, SourceError
from raypack.source import write_source
from raypack.train import PackedData
from tests.conftest import documents_table


def recipe(**more):
    return PackedData(**{"source": "/data/source", "maximum_tokens": 4096, **more})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"source": 3}, TypeError, "source must be a path or an ArrowSource"),
        ({"maximum_tokens": 0}, SamplerError, "maximum_tokens"),
        ({"maximum_tokens": 4096.0}, TypeError, "maximum_tokens"),
        ({"maximum_examples": 0}, SamplerError, "maximum_examples"),
        ({"layout": "loose"}, (SamplerError, ValueError), "layout"),
        ({"deal": "cards"}, SamplerError, "deal must be one of"),
        ({"batches_per_step": 0}, SamplerError, "batches_per_step must be at least 1"),
        ({"tokens_per_step": True}, TypeError, "tokens_per_step must be an integer, got bool"),
        ({"batches_per_step": 2, "tokens_per_step": 9}, SamplerError, "give one of them"),
        ({"packing": "best"}, SamplerError, "packing must be one of"),
        ({"packing": "greedy", "window": 9}, SamplerError, "window must be None"),
        ({"deal": "rank", "window": 9}, SamplerError, "window must be None"),
        ({"deal": "rank", "packing": "best_fit"}, SamplerError, "packing must be 'greedy' with deal='rank'"),
        ({"window": 0}, SamplerError, "window must be at least 1"),
        ({"shuffle": "no"}, SamplerError, "shuffle must be one of"),
        ({"attention_cost": (1,)}, TypeError, "attention_cost"),
        ({"seed": -1}, SamplerError, "seed must be at least 0"),
        ({"epochs": 0}, SamplerError, "epochs must be at least 1"),
        ({"ahead": 0}, SamplerError, "ahead must be at least 1"),
        ({"backend": "spark"}, SamplerError, "backend must be one of"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        recipe(**arguments)


def test_a_recipe_travels_to_workers_as_it_is():
    one = recipe(attention_cost=(5, 1))
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize("path", ["corpus", Path("corpus"), "./x/../corpus"])
def test_a_relative_source_means_the_same_in_a_worker_elsewhere(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(recipe(source=path))
    monkeypatch.chdir("/")
    assert pickle.loads(sent).source_path == str(tmp_path / "corpus")


def test_the_uri_of_a_source_stays_as_it_is():
    assert recipe(source="s3://bucket/corpus").source_path == "s3://bucket/corpus"


def test_tokens_per_step_are_rounded_up_to_whole_batches():
    assert recipe(tokens_per_step=4096 * 3).step_batches == 3
    assert recipe(tokens_per_step=4096 * 3 + 1).step_batches == 4
    assert recipe(batches_per_step=7).step_batches == 7
    assert recipe().step_batches is None


@pytest.mark.parametrize("micro", [1, 5, 31, 32, 33, 500])
@pytest.mark.parametrize("budget", [64, 16_384, 10**6])
@pytest.mark.parametrize("more", [None, 0, 1, 2, 5, 100])
def test_the_read_ahead_always_covers_a_step_its_last_block_and_commits_not_told(micro, budget, more):
    ahead = None if more is None else micro + more
    pace = recipe(maximum_tokens=budget, ahead=ahead).pace(micro)
    assert pace.ahead == ahead or ahead is None
    assert pace.block_rows >= 1
    assert pace.advance_every >= 1
    untold = pace.advance_every - 1
    assert pace.ahead >= untold + micro + pace.block_rows - 1


@pytest.mark.parametrize("micro", [1, 4, 5, 90])
def test_a_read_ahead_below_a_step_is_raised_to_it_so_that_fewer_workers_can_go_on(micro):
    pace = recipe(ahead=4).pace(micro)
    assert pace.ahead == max(4, micro)
    assert pace.ahead >= pace.advance_every - 1 + micro + pace.block_rows - 1


def test_an_order_that_is_left_open_is_full_on_a_local_disk_and_block_far_away(make_source):
    near = make_source([3, 4, 5])
    far = write_source("memory://far-away", [documents_table([3, 4, 5])])
    assert recipe(source=near).order_of(near) == "full"
    assert recipe(source=far).order_of(far) == "block"
    assert recipe(source=far, shuffle="full").order_of(far) == "full"


def test_a_source_whose_uri_holds_a_key_is_refused_and_the_key_not_shown():
    with pytest.raises(SourceError, match="s3://bucket/source must not be named with a key") as caught:
        recipe(source="s3://key:topsecret@bucket/source?region=r")
    assert "AWS_SECRET_ACCESS_KEY" in str(caught.value)
    assert "topsecret" not in str(caught.value)


def test_source_and_budget_may_be_positional_and_nothing_else():
    assert PackedData("/shared/corpus", 64) == PackedData(source="/shared/corpus", maximum_tokens=64)
    with pytest.raises(TypeError):
        PackedData("/shared/corpus", 64, 8)
