"""Tensor- and pipeline-parallel peers: which processes share a data rank, and what they agree on."""

from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from raypack.errors import LoaderError
from raypack.report import verify
from raypack.sampling.receipt import Receipt
from raypack.train import PackedData
from raypack.train.checkpoint_reading import read_state
from raypack.train.data_ranks import by_data_rank, data_ranks_of
from raypack.train.ledger import EpochEntry
from tests.conftest import long_tailed
from tests.train.local_run import LOCAL, Attempt, patch, place_of

BUDGET = 64


def mesh_of(*shape, names, processes=None):
    """A mesh as far as its layout goes; a real one needs as many processes (see test_mesh_runs.py)."""
    ranks = torch.arange(torch.Size(shape).numel()) if processes is None else torch.tensor(processes)
    return SimpleNamespace(mesh=ranks.reshape(shape), mesh_dim_names=names)


@pytest.mark.parametrize(
    ("mesh", "data_dim", "expected"),
    [
        (mesh_of(2, 2, names=("dp", "tp")), "dp", (0, 0, 1, 1)),
        (mesh_of(2, 2, names=("pp", "dp")), "dp", (0, 1, 0, 1)),
        (
            mesh_of(2, 2, 2, names=("replicate", "shard", "tp")),
            ("replicate", "shard"),
            (0, 0, 1, 1, 2, 2, 3, 3),
        ),
        (mesh_of(2, 2, 2, names=("pp", "dp", "tp")), "dp", (0, 0, 1, 1, 0, 0, 1, 1)),
        (mesh_of(2, 2, names=("dp", "tp"), processes=[3, 1, 0, 2]), "dp", (1, 0, 1, 0)),
        (mesh_of(1, 4, names=("dp", "tp")), "dp", (0, 0, 0, 0)),
        (mesh_of(4, names=("dp",)), None, None),
        (mesh_of(2, 2, names=("replicate", "shard")), ("replicate", "shard"), None),
    ],
)
def test_the_data_rank_of_each_process_is_its_place_along_the_data_dimensions(mesh, data_dim, expected):
    assert data_ranks_of(mesh, data_dim, mesh.mesh.numel()) == expected


@pytest.mark.parametrize(
    ("mesh", "data_dim", "told"),
    [
        (mesh_of(2, 2, names=("dp", "tp")), "data", "data_dim must be among .* dp, tp; got 'data'"),
        (mesh_of(2, 2, names=("dp", "tp")), ("dp", "dp"), "each once"),
        (mesh_of(2, 2, names=("dp", "tp")), (), "one or more"),
        (mesh_of(2, 2, names=("dp", "tp")), None, "data_dim must name .* data_dim='dp'"),
        (mesh_of(2, names=("dp",)), "dp", "must hold all 4 processes of the run, got .0, 1.: give the whole"),
        (mesh_of(2, 2, names=None), "dp", "must have names"),
        (None, "dp", "data_dim needs a mesh"),
    ],
)
def test_a_mesh_that_does_not_say_who_shares_is_refused_with_the_remedy(mesh, data_dim, told):
    with pytest.raises(LoaderError, match=told):
        data_ranks_of(mesh, data_dim, 4)


def test_what_is_no_mesh_is_refused():
    with pytest.raises(TypeError, match="mesh must be a torch DeviceMesh, got int"):
        data_ranks_of(4, "dp", 4)


def entry(examples):
    return [EpochEntry(epoch=0, steps=1, receipt=Receipt(examples, 5, 7))]


def test_receipts_are_counted_once_a_data_rank():
    place = place_of(0, 4, data_ranks=(0, 1, 0, 1))
    assert by_data_rank(place, [entry(3), entry(4), entry(3), entry(4)]) == [entry(3), entry(4)]


def test_peers_that_have_trained_different_examples_are_named():
    place = place_of(0, 4, data_ranks=(0, 1, 0, 1))
    with pytest.raises(
        LoaderError, match=r"rank 3 has trained other examples than rank 1, .* data rank 1: peers"
    ):
        by_data_rank(place, [entry(3), entry(4), entry(3), entry(5)])


# -- whole attempts ---------------------------------------------------------------------------------

WORLDS = [(0, 0, 1, 1), None, (0, 1, 0, 1), (0, 0, 0, 0), (1, 0, 2, 1, 2, 0)]


def worlds():
    """Who shares a data rank in each of some attempts, and the steps of the attempt."""
    return st.lists(st.tuples(st.sampled_from(WORLDS), st.integers(0, 5)), min_size=1, max_size=4)


@pytest.fixture
def recipe_and_source(make_source, monkeypatch):
    patch(monkeypatch)
    source = make_source(long_tailed(150, seed=2), labels=True)
    recipe = PackedData(
        source=source.path, maximum_tokens=BUDGET, batches_per_step=4, backend="direct", seed=2, ahead=4
    )
    return recipe, source


def train(steps, most, *, loose):
    """Return each process's micro-batches; ``loose`` lets one process go far ahead of its peers."""
    seen = [[] for _ in steps]
    order = [(p, k) for p in range(len(steps)) for k in range(most)]
    for process, _ in order if loose else sorted(order, key=lambda at: at[1]):
        step = next(steps[process], None)
        if step is None:
            continue
        seen[process] += [batch.indices.tolist() for batch in step]
        data_world = step.loss_scale * step.supervised_tokens
        step.commit()
        seen[process].append(round(data_world))
    return seen


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(life=st.data())
def test_peers_train_the_same_and_each_example_is_counted_once_on_any_meshes(
    recipe_and_source, tmp_path_factory, life
):
    recipe, source = recipe_and_source
    folder, checkpoint = tmp_path_factory.mktemp("mesh"), None
    for number, (data_ranks, most) in enumerate([*life.draw(worlds()), ((0, 0, 1, 1), 10**3)]):
        count = len(data_ranks) if data_ranks else 3
        data_world = max(data_ranks) + 1 if data_ranks else count
        with Attempt(recipe, source, count, checkpoint, data_ranks=data_ranks) as run:
            seen = train([iter(one) for one in run.loaders], most, loose=life.draw(st.booleans()))
            checkpoint = run.save(folder, f"{number:032x}")
        for process, data_rank in enumerate(data_ranks or ()):
            assert seen[process] == seen[data_ranks.index(data_rank)]
        assert {size for one in seen for size in one if isinstance(size, int)} <= {data_world}
        assert read_state(LOCAL, str(checkpoint)).world_size == data_world
    audit = verify(checkpoint)
    assert audit.ok, audit.findings
    assert [(e.complete, e.trained) for e in audit.epochs] == [(True, 150)]
