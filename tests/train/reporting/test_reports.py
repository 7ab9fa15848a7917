"""Reports without Ray: what counts as one, and what ranks agree on."""

import os
from contextlib import suppress
from types import SimpleNamespace

import pytest
import ray.train
from ray.train.v2._internal.execution.storage import StorageContext

from raypack.checkpoint.reading import read_state
from raypack.errors import LoaderError
from raypack.train import PackedData, report
from raypack.train.reporting import last_report
from raypack.train.reporting import reports as reporting
from tests.conftest import long_tailed
from tests.support.local_run import Attempt, Nobody, patch


@pytest.fixture(autouse=True)
def local(monkeypatch):
    patch(monkeypatch)


@pytest.fixture
def sent(monkeypatch, tmp_path):
    """A world of one rank whose rendezvous and reports are written down; its storage is Ray Train's own."""
    out = SimpleNamespace(topics=[], reports=[], last=None, others={})
    storage = StorageContext(str(tmp_path / "storage"), "run")

    def gather(_, topic, word, **__):
        out.topics.append(topic)
        if out.others and topic.startswith("report"):
            return [{"done": {**word["done"], **out.others}}]  # as another rank would say
        return [word]

    def to_train(metrics, *, checkpoint, checkpoint_dir_name=None, checkpoint_upload_fn=None, **_):
        if checkpoint is None:
            out.reports.append((metrics, None, []))
            return
        uploaded = out.last = checkpoint_upload_fn(checkpoint, checkpoint_dir_name)
        state = read_state(uploaded.filesystem, uploaded.path)
        out.reports.append((metrics, state.step, sorted(os.listdir(uploaded.path))))

    monkeypatch.setattr(Nobody, "gather", gather, raising=False)
    monkeypatch.setattr(reporting, "_reports", {})
    monkeypatch.setattr(last_report, "_reports", {})
    monkeypatch.setattr(ray.train, "report", to_train)
    monkeypatch.setattr(ray.train, "get_checkpoint", lambda: out.last)
    monkeypatch.setattr(ray.train, "get_context", lambda: SimpleNamespace(get_storage=lambda: storage))
    return out


@pytest.fixture
def loader(make_source):
    source = make_source(long_tailed(100))
    recipe = PackedData(source=source, maximum_tokens=64, batches_per_step=4, backend="direct")
    with Attempt(recipe, source, 1) as run:
        yield run.loaders[0]


def test_a_report_that_was_refused_here_does_not_put_the_ranks_out_of_step(loader, sent):
    step = next(iter(loader))
    list(step)
    with pytest.raises(LoaderError, match="not committed"):
        report({}, loader)
    step.commit()
    report({"loss": 1.0}, loader)
    assert sent.topics == ["report 1", "files 1", "manifest 1", "upload 1"]
    assert sent.reports == [({"loss": 1.0}, 1, ["raypack"])]


def save_nothing(directory):
    pass


def take_step(loader):
    step = next(iter(loader))
    list(step)
    step.commit()


def test_what_the_last_checkpoint_holds_is_not_written_again_and_metrics_go_on_alone(loader, sent):
    saves = []
    take_step(loader)
    for _ in range(3):
        report({"steps": 1}, loader, save=saves.append)
    assert [(metrics, step) for metrics, step, _ in sent.reports] == [
        ({"steps": 1}, 1),
        ({"steps": 1}, None),
        ({"steps": 1}, None),
    ]
    assert len(saves) == 1


def test_a_step_other_metrics_or_another_save_make_another_checkpoint(loader, sent):
    take_step(loader)
    report({}, loader)
    report({}, loader, save=save_nothing)
    report({"evaluated": 1.5}, loader, save=save_nothing)
    take_step(loader)
    report({"evaluated": 1.5}, loader, save=save_nothing)
    assert [step for _, step, _ in sent.reports] == [1, 1, 1, 2]


def test_a_checkpoint_that_somebody_else_reported_meanwhile_is_followed_by_one_of_ours(loader, sent):
    take_step(loader)
    report({}, loader)
    sent.last = SimpleNamespace(path="run/checkpoint_of_others")
    report({}, loader)
    assert [step for _, step, _ in sent.reports] == [1, 1]


def test_where_one_rank_would_write_another_checkpoint_all_ranks_write(loader, sent):
    take_step(loader)
    report({}, loader)
    sent.others = {"same": False}
    report({}, loader)
    sent.others = {"same": True}
    report({}, loader)
    assert [step for _, step, _ in sent.reports] == [1, 1, None]


def test_a_report_before_the_first_step_is_a_beginning(loader, sent):
    report({}, loader)
    assert [step for _, step, _ in sent.reports] == [0]


def test_steps_after_the_last_report_are_told_when_the_loop_ends(loader, sent, caplog):
    for step in loader:
        list(step)
        step.commit()
        if step.index == 1:
            report({}, loader)
    steps = loader.steps_done
    assert steps > 2
    with loader:
        pass
    assert f"{steps - 2} steps after the last report are in no checkpoint" in caplog.text


@pytest.mark.parametrize("faulty", [False, True])
def test_nothing_is_told_after_a_report_or_an_error(loader, sent, caplog, faulty):
    step = next(iter(loader))
    list(step)
    step.commit()
    with suppress(ZeroDivisionError), loader:
        if faulty:
            raise ZeroDivisionError
        report({}, loader)
    assert "in no checkpoint" not in caplog.text


def test_loaders_come_in_one_order_on_every_rank():
    one, two = SimpleNamespace(name="one"), SimpleNamespace(name="two")
    assert list(reporting._by_name({"two": two, "one": one})) == ["one", "two"]


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_progress_of_an_empty_source_is_all(make_source, epochs):
    source = make_source([])
    recipe = PackedData(source=source, maximum_tokens=64, batches_per_step=4, epochs=epochs, backend="direct")
    with Attempt(recipe, source, 1) as run:
        assert run.loaders[0].progress == 1.0


def test_a_rank_that_skips_alone_is_named_with_what_it_skipped(make_source):
    source = make_source(long_tailed(60))
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=4, backend="direct")
    with Attempt(recipe, source, 2) as run:
        for rank, steps in enumerate(map(iter, run.loaders)):
            step = next(steps)
            list(step)
            step.skip() if rank else step.commit()
        ranks = [{None: loader.report_payload()} for loader in run.loaders]
    with pytest.raises(LoaderError, match=r"rank 1 has retried or skipped other steps than rank 0 .*\[0\]"):
        reporting._check_agreement(ranks)
