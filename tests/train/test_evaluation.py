"""Evaluation on ranks that are threads of control alone: no cluster is needed for it."""

import threading

import numpy as np
import pytest
import torch

from raypack.errors import LoaderError
from raypack.train import PackedData, get_evaluation
from tests.conftest import long_tailed

COUNT = 150


@pytest.fixture(params=[False, True], ids=["plain", "labels"])
def source(request, make_source):
    return make_source(long_tailed(COUNT), labels=request.param)


def parts_of(source, world_size, **more):
    recipe = PackedData(source=source.path, maximum_tokens=64, **more)
    return [get_evaluation(recipe, rank=rank, world_size=world_size) for rank in range(world_size)]


def logits_of(batch):
    """What a model that knows nothing but the token itself would say."""
    return torch.sin(batch.input_ids.double()[..., None] * torch.arange(1, 98, dtype=torch.float64))


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 100])
def test_every_example_is_evaluated_once_and_ranks_have_equally_many_batches(source, world_size, layout):
    parts = parts_of(source, world_size, layout=layout)
    for _ in range(2):  # as often as one likes
        ranks = [list(part) for part in parts]
        assert len({len(batches) for batches in ranks}) == 1
        indices = np.concatenate([batch.indices for batches in ranks for batch in batches])
        assert sorted(indices.tolist()) == list(range(COUNT))


@pytest.mark.parametrize("packing", [{"packing": "greedy"}, {"window": 20}])
def test_the_mean_loss_is_the_same_at_any_number_of_ranks(source, packing):
    means = []
    for world_size in (1, 3):
        parts = parts_of(source, world_size, **packing)
        total = sum(float(part.loss(logits_of(batch), batch)) for part in parts for batch in part)
        means.append(total / parts[0].supervised_tokens)
    assert means[0] == pytest.approx(means[1], abs=1e-9)
    (one,) = parts_of(source, 1)
    assert one.mean(means[0] * one.supervised_tokens) == pytest.approx(means[0])


def test_an_empty_source_has_no_batches_and_a_mean_of_0(make_source):
    (one,) = parts_of(make_source([]), 1)
    assert list(one) == []
    assert one.mean(0.0) == 0.0


def test_an_iteration_that_is_left_early_leaves_no_thread(source):
    (one,) = parts_of(source, 1)
    for _ in one:
        break
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("raypack-evaluation")]
    assert sum(len(batch.indices) for batch in one) == COUNT


def test_several_ranks_without_a_process_group_are_told_what_mean_needs(source):
    with pytest.raises(LoaderError, match="mean needs a torch process group of its 2 ranks"):
        parts_of(source, 2)[0].mean(1.0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rank": 0}, LoaderError, "give both of rank and world_size"),
        ({"rank": 2, "world_size": 2}, LoaderError, "rank must be at most 1"),
        ({"rank": -1, "world_size": 2}, LoaderError, "rank must be at least 0"),
        ({"rank": 0, "world_size": 0}, LoaderError, "world_size must be at least 1"),
        ({"rank": 0, "world_size": 1, "data_dim": "dp"}, LoaderError, "must be left out beside mesh and"),
    ],
)
def test_bad_arguments_are_named(source, arguments, error, message):
    with pytest.raises(error, match=message):
        get_evaluation(PackedData(source=source.path, maximum_tokens=64), **arguments)


def test_what_is_no_recipe_is_refused():
    with pytest.raises(TypeError, match="recipe must be a PackedData, got str"):
        get_evaluation("source")
