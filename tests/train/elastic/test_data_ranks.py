"""Tensor- and pipeline-parallel peers: which processes share a data rank, and what they agree on."""

from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from raypack.audit import verify
from raypack.audit.state.reshard import reshard
from raypack.checkpoint.ledger import EpochEntry
from raypack.checkpoint.reading import read_state
from raypack.errors import LoaderError
from raypack.sampling.receipt import Receipt
from raypack.train import PackedData
from raypack.train.elastic.data_ranks import OTHER_STATE, by_data_rank, data_ranks_of, entries_by_data_rank
from raypack.train.elastic.deal_starts import rank_start
from tests.conftest import long_tailed
from tests.support.local_run import LOCAL, Attempt, patch, side_by_side, worker_of

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


def entry(examples, observed=0):
    return [EpochEntry(epoch=0, steps=1, receipt=Receipt(examples, 5, 7), batches=2, observed=observed)]


def test_receipts_are_counted_once_a_data_rank():
    place = worker_of(0, 4, data_ranks=(0, 1, 0, 1))
    assert entries_by_data_rank(place, [entry(3), entry(4), entry(3), entry(4)]) == [entry(3), entry(4)]


def test_what_any_peer_has_observed_counts_for_its_data_rank():
    place = worker_of(0, 4, data_ranks=(0, 1, 0, 1))  # the last stage alone has a loss
    words = [entry(3), entry(4), entry(3, 2), entry(4, 1)]
    assert entries_by_data_rank(place, words) == [entry(3, 2), entry(4, 1)]


def test_peers_that_have_trained_different_examples_are_named():
    place = worker_of(0, 4, data_ranks=(0, 1, 0, 1))
    with pytest.raises(
        LoaderError, match=r"rank 3 has trained other examples than rank 1, .* data rank 1: peers"
    ):
        entries_by_data_rank(place, [entry(3), entry(4), entry(3, 2), entry(5)])


def test_peers_whose_states_differ_are_named():
    place = worker_of(0, 4, data_ranks=(0, 1, 0, 1))
    with pytest.raises(
        LoaderError, match=r"rank 2 stands elsewhere in its shard than rank 0, .* data rank 0"
    ):
        by_data_rank(place, ["a", "b", "c", "b"], OTHER_STATE)


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
    assert audit.consistent, audit.findings
    assert audit.reached
    assert [(e.complete, e.trained) for e in audit.epochs] == [(True, 150)]


# -- whole attempts under the rank deal --------------------------------------------------------------


def train_shards(run, most, refuses=(), dies_at=-1):
    """Train up to ``most`` steps, each process in a thread; return what each saw of each step.

    Steps whose number is in ``refuses`` are begun again, or skipped where it is odd; before step
    ``dies_at`` of the attempt the planner of the last process dies.
    """

    def steps(loader):
        seen = []
        for number, step in enumerate(islice(loader, most)):
            if number == dies_at and loader is run.loaders[-1]:
                run.actors[-1].die()
            if step.index in refuses and step.index % 2 == 0:
                next(iter(step))
                step.retry()
            batches = list(step)
            indices = [i for batch in batches for i in batch.indices.tolist()]
            own = (
                sum(int((batch.labels != -100).sum()) for batch in batches),
                sum(batch.plan.real_tokens for batch in batches),
            )
            whole = step.supervised_tokens, step.real_tokens
            scale = step.loss_scale * step.supervised_tokens
            seen.append((step.index, len(batches), indices, own, whole, round(scale)))
            (step.skip if step.index in refuses and step.index % 2 else step.commit)()
        return seen

    return side_by_side(steps, run.loaders)


def check_steps(seen, firsts, data_world):
    """All that is told of a step over all ranks must count each data rank once."""
    for parts in zip(*(seen[first] for first in firsts), strict=True):
        assert len({(index, micros) for index, micros, *_ in parts}) == 1
        sums = tuple(map(sum, zip(*(own for *_, own, _, _ in parts), strict=True)))
        assert {(*whole, scale) for *_, whole, scale in parts} == {(*sums, data_world if sums[0] else 0)}


@pytest.mark.parametrize("data_ranks", [(0, 0, 1, 1), (1, 0, 1, 0), (0, 1, 0, 1, 0, 1)])
def test_data_ranks_are_dealt_the_same_with_and_without_peers(recipe_and_source, data_ranks):
    recipe, source = recipe_and_source
    recipe = replace(recipe, deal="rank")
    with (
        Attempt(recipe, source, 2) as alone,
        Attempt(recipe, source, len(data_ranks), None, data_ranks) as run,
    ):
        expected, seen = train_shards(alone, 10**3), train_shards(run, 10**3)
    assert len(expected[0]) > 5
    assert seen == [expected[data_rank] for data_rank in data_ranks]


def test_a_step_has_as_many_batches_as_there_are_data_ranks_where_the_recipe_does_not_say(recipe_and_source):
    recipe, source = recipe_and_source
    with Attempt(
        replace(recipe, deal="rank", batches_per_step=None), source, 4, data_ranks=(0, 0, 1, 1)
    ) as run:
        assert [loader.batches_per_step for loader in run.loaders] == [2] * 4
        assert {micros for one in train_shards(run, 10**3) for _, micros, *_ in one} == {1}


@pytest.mark.parametrize(
    ("what", "told"), [("own", "stands elsewhere in its shard"), ("epochs", "has trained other examples")]
)
def test_a_report_of_peers_that_are_not_alike_is_refused(recipe_and_source, what, told):
    recipe, source = recipe_and_source
    with Attempt(replace(recipe, deal="rank"), source, 4, data_ranks=(0, 0, 1, 1)) as run:
        train_shards(run, 2)
        words = [loader.report_payload() for loader in run.loaders]
        run.loaders[0].run_state("a" * 32, words)
        words[3] = {**words[3], what: words[0][what]}
        with pytest.raises(LoaderError, match=f"rank 3 {told} than rank 2, and both are data rank 1: peers"):
            run.loaders[0].run_state("a" * 32, words)


def test_peers_of_the_only_data_rank_need_no_process_group_and_several_data_ranks_do(recipe_and_source):
    recipe, source = recipe_and_source
    recipe, cpu = replace(recipe, deal="rank"), torch.device("cpu")
    deal, *_ = rank_start(recipe, source, worker_of(1, 2, data_ranks=(0, 0)), None, cpu)
    assert deal.batches_per_step == 4
    with pytest.raises(LoaderError, match="deal='rank' needs a torch process group of its 4 ranks"):
        rank_start(recipe, source, worker_of(1, 4, data_ranks=(0, 0, 1, 1)), None, cpu)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(life=st.data())
def test_under_the_rank_deal_peers_have_one_state_and_any_meshes_go_on_from_it(
    recipe_and_source, tmp_path_factory, life
):
    recipe, source = recipe_and_source
    recipe = replace(recipe, deal="rank", epochs=life.draw(st.integers(1, 2)))
    refuses = life.draw(st.sets(st.integers(0, 20), max_size=4))
    folder, checkpoint, trained = tmp_path_factory.mktemp("mesh"), None, []
    for number, (data_ranks, most) in enumerate([*life.draw(worlds()), ((0, 1, 0, 1), 10**3)]):
        place = worker_of(0, len(data_ranks) if data_ranks else 3, data_ranks)
        recipe = replace(recipe, maximum_tokens=BUDGET + life.draw(st.integers(0, 9)))
        with Attempt(recipe, source, place.world_size, checkpoint, data_ranks=data_ranks) as run:
            seen = train_shards(run, most, refuses, dies_at=life.draw(st.integers(-1, 4)))
            records = [loader.own_record() for loader in run.loaders]
            checkpoint = run.save(folder, f"{number:032x}")
        for process, data_rank in enumerate(data_ranks or range(3)):
            first = place.first_peers[data_rank]
            assert (seen[process], records[process]) == (seen[first], records[first])
            assert records[process]["sampler"]["rank"] == data_rank
        check_steps(seen, place.first_peers, place.data_world_size)
        trained += [i for first in place.first_peers for _, _, indices, *_ in seen[first] for i in indices]
        files = sorted(file.name for file in (checkpoint / "raypack").glob("rank_*"))
        assert files == [f"rank_{data_rank:05d}.json" for data_rank in range(place.data_world_size)]
        assert read_state(LOCAL, str(checkpoint)).world_size == place.data_world_size
        assert reshard(checkpoint, life.draw(st.integers(1, 7))).ok
    assert sorted(trained) == sorted([*range(150)] * recipe.epochs)
    audit = verify(checkpoint)
    assert audit.consistent, audit.findings
    assert audit.reached
    assert all(e.complete and e.trained + e.refused.receipt.examples == 150 for e in audit.epochs)
