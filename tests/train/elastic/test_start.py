"""What a start tells, without a cluster."""

import inspect
from dataclasses import replace

import pytest

from raypack.errors import CheckpointError, LoaderError, SourceError
from raypack.train import PackedData
from raypack.train.elastic import start
from raypack.train.elastic.start import _check_restored, _checked_changes, _who_lacks, get_loader
from raypack.train.integrations.data_config import PackedShard
from tests.conftest import long_tailed
from tests.support.local_run import Nobody, worker_of
from tests.support.state_factory import trained


def test_the_nodes_that_lack_a_source_are_named_with_their_ranks():
    words = [("10.0.0.1", None), ("10.0.0.2", "no file"), ("10.0.0.3", "no file"), ("10.0.0.2", "no file")]
    told = _who_lacks("/data", words)
    assert "/data cannot be opened on node 10.0.0.2 (rank 1, 3); node 10.0.0.3 (rank 2): no file" in told


def test_a_source_that_nobody_has_is_told_as_that():
    assert "on any node: node a (rank 0)" in _who_lacks("/data", [("a", "no file")])


@pytest.fixture
def source(make_source):
    return make_source(long_tailed(150))


def restored_with(source, recipe, may_change=()):
    _check_restored(recipe, source, worker_of(0, 1), trained(source, steps=3), _checked_changes(may_change))


@pytest.mark.parametrize(
    "change",
    [{"maximum_tokens": 128}, {"maximum_examples": 4}, {"batches_per_step": 7}],
    ids=lambda change: next(iter(change)),
)
def test_what_may_change_changes_only_when_it_is_said(source, change, caplog):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4, seed=1)
    restored_with(source, recipe)
    (name,) = change
    with pytest.raises(CheckpointError, match=rf"{name} must stay .*may_change=\('{name}',\)"):
        restored_with(source, replace(recipe, **change))
    restored_with(source, replace(recipe, **change), may_change=[name])
    assert f"{name} is {change[name]} from step 3 on" in caplog.text


@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"layout": "padded"}, {"packing": "greedy"}, {"window": 7}, {"shuffle": "block"}]
)
def test_what_would_plan_another_epoch_may_never_change(source, change):
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4, seed=1)
    (name,) = change
    with pytest.raises(
        CheckpointError, match=rf"{name} must stay .*give the run another name to begin anew$"
    ):
        restored_with(source, replace(recipe, **change), may_change=["maximum_tokens"])


def test_what_may_change_is_checked_at_the_door():
    with pytest.raises(TypeError, match="may_change must be a tuple of names, got 'seed'"):
        _checked_changes("seed")
    with pytest.raises(LoaderError, match="may_change must be one of 'maximum_tokens'"):
        _checked_changes(["seed"])


def test_a_shard_of_a_data_config_opens_with_all_that_get_loader_takes():
    ours, whole = (list(inspect.signature(one).parameters) for one in (PackedShard.open, get_loader))
    assert ours[1:] == whole[1:]


def test_a_loader_that_cannot_be_opened_leaves_its_meeting(tmp_path, monkeypatch):
    left = []

    class Alone(Nobody):
        def gather(self, topic, word, **_):
            return [word]

        def leave(self):
            left.append(self.rank)

    monkeypatch.setattr(start.WorkerContext, "current", lambda: worker_of(0, 1))
    monkeypatch.setattr(start, "join_rendezvous", lambda *_, **__: Alone())
    with pytest.raises(SourceError, match="cannot be opened on any node"):
        get_loader(PackedData(source=tmp_path / "none", maximum_tokens=64, backend="direct"), device="cpu")
    assert left == [0]
