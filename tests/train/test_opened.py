"""A loader opened again in one attempt: `get_loader` itself, ranks as threads, without Ray."""

import pickle
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest
import ray.train

from raypack.actors.planner import NodePlanner
from raypack.audit import verify
from raypack.errors import CheckpointError, LoaderError
from raypack.train import PackedData, get_loader
from raypack.train.elastic import deal_starts, start
from tests.conftest import long_tailed
from tests.support.local_run import LOCAL, Attempt, LocalActor, Sum, closed, patch, side_by_side, worker_of
from tests.train.elastic.test_data_ranks import mesh_of

COUNT = 150
_groups = count()


class Meetings:
    """Where threads meet by name, as processes do in actors; words travel pickled."""

    def __init__(self, world_size):
        self.world_size, self.words, self.changed = world_size, {}, threading.Condition()

    def join(self, world_size, rank, *, name):
        return SimpleNamespace(rank=rank, gather=partial(self.gather, name, rank), leave=lambda: None)

    def gather(self, name, rank, topic, word, **_):
        with self.changed:
            said = self.words.setdefault((name, topic), {})
            said[rank] = pickle.dumps(word)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: len(said) == self.world_size, 60)
        return [pickle.loads(said[r]) for r in range(self.world_size)]


class Run:
    """An attempt of a run: its ranks, its last checkpoint, what they have trained."""

    def __init__(self, monkeypatch, folder, recipe, world_size=1, data_ranks=None):
        self.folder, self.recipe, self.world_size, self.checkpoint = folder, recipe, world_size, None
        self.mesh = {}
        if data_ranks:
            mesh = mesh_of(2, 2, names=("dp", "tp"))
            self.mesh = {"mesh": mesh, "data_dim": "dp"}
        self.actors, self.lock, self.here = {}, threading.Lock(), threading.local()
        self.trained = [[] for _ in range(world_size)]
        self.group, self.saves = f"group-{next(_groups)}", count()
        rendezvous, total = Meetings(world_size), Sum(world_size)
        patch(monkeypatch)
        monkeypatch.setattr(start, "join_rendezvous", rendezvous.join)
        monkeypatch.setattr(start, "start_planner", self.planner)
        monkeypatch.setattr(start.WorkerContext, "current", self.context)
        monkeypatch.setattr(deal_starts, "require_group", lambda *_: None)
        monkeypatch.setattr(deal_starts, "add_up", lambda values, device: total(values))
        monkeypatch.setattr(ray.train, "get_checkpoint", lambda: self.checkpoint)

    def planner(self, spec, *, name, node_id):
        with self.lock:
            if name not in self.actors:
                self.actors[name] = LocalActor(partial(NodePlanner, spec))
            return self.actors[name]

    def context(self):
        return replace(worker_of(self.here.rank, self.world_size), group=self.group)

    def open(self, **options):
        return get_loader(options.pop("recipe", self.recipe), device="cpu", **self.mesh, **options)

    def on_each(self, work):
        """Return what ``work(rank)`` gives on each rank."""

        def one(rank):
            self.here.rank = rank
            return work(rank)

        return side_by_side(one, range(self.world_size))

    def train(self, rank, most=10**6, fails=True, close=True, **options):
        """Open a loader, commit some steps, fail inside the next; return the steps before, and the loader."""
        loader = self.open(**options)
        first = loader.steps_done
        with suppress(MemoryError):
            for step in loader:
                if step.index == first + most:
                    next(iter(step))
                    if fails:
                        raise MemoryError
                    break
                batches = [batch.indices.tolist() for batch in step]
                step.commit()
                self.trained[rank].append((step.index, step.epoch, batches))
        if close:
            closed(loader)
        return first, loader

    def report(self, loaders):
        """Save a checkpoint of open loaders, as a report does."""
        report_id = f"{next(self.saves):032x}"
        path = Attempt.save(SimpleNamespace(loaders=loaders), self.folder, report_id)
        self.checkpoint = ray.train.Checkpoint(str(path), LOCAL)
        for loader in loaders:
            loader.remember(None)

    def finish(self):
        """Train all that is left and report it; return the audit."""
        loaders = [loader for _, loader in self.on_each(lambda rank: self.train(rank, close=False))]
        self.report(loaders)
        for loader in loaders:
            closed(loader)
        return verify(self.checkpoint.path)

    def close(self):
        for actor in self.actors.values():
            actor.stop()


@pytest.fixture
def source(make_source):
    return make_source(long_tailed(COUNT, seed=2), labels=True)


@pytest.fixture
def make_run(monkeypatch, tmp_path, source):
    runs = []

    def make(world_size=1, data_ranks=None, **more):
        recipe = {"source": source.path, "maximum_tokens": 64, "batches_per_step": 4, "backend": "direct"}
        recipe = PackedData(**{**recipe, "seed": 2, **more})
        run = Run(monkeypatch, tmp_path, recipe, world_size, data_ranks)
        runs.append(run)
        return run

    yield make
    for run in runs:
        run.close()


def check(run, audit, epochs=1, peers=1):
    """Each example was trained once in each epoch, and the audit says the same."""
    assert audit.findings == ()
    assert [(e.complete, e.trained) for e in audit.epochs] == [(True, COUNT)] * epochs
    for epoch in range(epochs):
        seen = [i for one in run.trained for _, e, batches in one if e == epoch for b in batches for i in b]
        assert sorted(seen) == sorted([*range(COUNT)] * peers)


WORLDS = [(1, None), (3, None), (4, (0, 0, 1, 1))]


@pytest.mark.parametrize("deal", ["global", "rank"])
@pytest.mark.parametrize(("world_size", "data_ranks"), WORLDS)
def test_after_an_error_that_was_caught_it_goes_on_from_what_was_committed(
    make_run, world_size, data_ranks, deal, caplog
):
    run = make_run(world_size, data_ranks, deal=deal, epochs=2)
    assert [first for first, _ in run.on_each(lambda rank: run.train(rank, 3))] == [0] * world_size
    audit = run.finish()
    check(run, audit, epochs=2, peers=2 if data_ranks else 1)
    assert [(a.number, a.first_step) for a in audit.attempts] == [(0, 0), (1, 3)]
    (warning,) = [record.getMessage() for record in caplog.records if "opened again" in record.getMessage()]
    assert (
        "the loader was opened again: the data goes on at step 3, after 3 committed steps that no" in warning
    )
    assert "get_loader(..., checkpoint=ray.train.get_checkpoint())" in warning


@pytest.mark.parametrize("deal", ["global", "rank"])
def test_each_step_may_have_a_loader_of_its_own_over_the_ends_of_epochs_too(make_run, deal):
    run = make_run(2, deal=deal, epochs=3)
    firsts = []
    while not firsts or firsts[-1] == len(firsts) - 1:
        ((first, _), (other, _)) = run.on_each(lambda rank: run.train(rank, 1))
        assert first == other
        firsts.append(first)
    assert len(firsts) > 20
    check(run, run.finish(), epochs=3)


def test_it_may_go_on_with_a_smaller_budget_where_that_is_said(make_run):
    run = make_run(2, maximum_tokens=128)
    run.on_each(lambda rank: run.train(rank, 3))
    smaller = replace(run.recipe, maximum_tokens=64)
    with pytest.raises(CheckpointError, match="maximum_tokens must stay 128"):
        run.on_each(lambda rank: run.train(rank, recipe=smaller))
    run.on_each(lambda rank: run.train(rank, 2, recipe=smaller, may_change=("maximum_tokens",)))
    run.recipe = smaller
    audit = run.finish()
    check(run, audit)
    assert [(a.steps, a.options.maximum_tokens) for a in audit.attempts[:2]] == [(3, 128), (2, 64)]


def refused(run, work):
    """Return what each rank is told."""

    def one(rank):
        with pytest.raises(LoaderError) as told:
            work(rank)
        return str(told.value)

    return run.on_each(one)


@pytest.mark.parametrize("deal", ["global", "rank"])
def test_ranks_that_stand_at_different_steps_are_refused_on_every_rank(make_run, deal):
    run = make_run(2, deal=deal)

    def commit(rank):
        loader = run.open()
        for step in loader:
            list(step)
            if (step.index, rank) == (3, 1):
                break
            step.commit()
            if step.index == 3:
                break
        closed(loader)

    run.on_each(commit)
    for told in refused(run, lambda rank: run.open()):
        assert "the loader was opened again, but rank 1 stands after step 3, rank 0 after step 4" in told
        assert "let the error that closed the loader end the attempt" in told


def test_a_rank_that_has_committed_nothing_is_named_on_every_rank(make_run):
    run = make_run(2)
    run.on_each(lambda rank: run.train(rank, 1 - rank, name="train"))
    for told in refused(run, lambda rank: run.open(name="train")):
        assert "the loader 'train' was opened again, but rank 1 has committed no step in this attempt" in told


def test_a_second_one_of_a_name_that_is_open_is_refused_on_every_rank(make_run):
    run = make_run(2)
    loaders = run.on_each(lambda rank: run.open())
    run.on_each(lambda rank: closed(run.open(name="other")))
    closed(loaders[0])
    for told in refused(run, lambda rank: run.open()):
        assert "the loader is open already, on rank 1: leave its 'with' block" in told
        assert "get_loader(..., name=...)" in told
    closed(loaders[1])
    check(run, run.finish())


def test_after_a_report_it_goes_on_there_and_warns_of_nothing(make_run, caplog):
    run = make_run(2)
    loaders = [one for _, one in run.on_each(lambda rank: run.train(rank, 3, close=False))]
    for loader in loaders:
        loader._open_step = None  # the step that failed is left
    run.report(loaders)
    for loader in loaders:
        closed(loader)
    assert [first for first, _ in run.on_each(lambda rank: run.train(rank, 0))] == [3, 3]
    check(run, run.finish())
    assert "opened again" not in caplog.text


def test_a_checkpoint_that_is_given_holds_whatever_was_committed_since(make_run):
    run = make_run(2)
    loaders = [one for _, one in run.on_each(lambda rank: run.train(rank, 2, close=False))]
    for loader in loaders:
        loader._open_step = None
    run.report(loaders)
    for loader in loaders:
        closed(loader)
    run.on_each(lambda rank: run.train(rank, 3))
    again = run.on_each(lambda rank: run.train(rank, 1, checkpoint=run.checkpoint))
    assert [first for first, _ in again] == [2, 2]
    for trained in run.trained:  # the model was loaded again: it has not seen those
        del trained[2:5]
    check(run, run.finish())


def test_a_loader_that_is_to_begin_anew_does(make_run):
    run = make_run()
    run.on_each(lambda rank: run.train(rank, 3))
    assert [first for first, _ in run.on_each(lambda rank: run.train(rank, 0, checkpoint=None))] == [0]
    run.trained = [[]]
    check(run, run.finish())


def test_a_new_attempt_in_the_same_process_goes_on_from_the_checkpoint(make_run):
    run = make_run(2)
    loaders = [one for _, one in run.on_each(lambda rank: run.train(rank, 2, close=False))]
    for loader in loaders:
        loader._open_step = None
    run.report(loaders)
    for loader in loaders:
        closed(loader)
    run.on_each(lambda rank: run.train(rank, 3))
    run.group = f"group-{next(_groups)}"
    assert [first for first, _ in run.on_each(lambda rank: run.train(rank, 0))] == [2, 2]
    for trained in run.trained:
        del trained[2:]
    check(run, run.finish())
