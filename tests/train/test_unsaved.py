"""What is said in the driver of steps that no checkpoint holds, from what rank 0 has noted."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from raypack.train.reporting import unsaved
from raypack.train.reporting.unsaved import Note, forget, log_unsaved, note, note_start, notes
from tests.support.local_run import worker_of


@pytest.fixture(autouse=True)
def store(monkeypatch):
    """Ray's key-value store, as a dict."""
    values = {}

    def delete(key, del_by_prefix=False, **_):
        for one in [one for one in values if one == key or (del_by_prefix and one.startswith(key))]:
            del values[one]

    monkeypatch.setattr(unsaved, "_internal_kv_put", lambda key, value, **_: values.update({key: value}))
    monkeypatch.setattr(unsaved, "_internal_kv_get", lambda key, **_: values[key])
    monkeypatch.setattr(
        unsaved, "_internal_kv_list", lambda prefix, **_: [k for k in values if k.startswith(prefix)]
    )
    monkeypatch.setattr(unsaved, "_internal_kv_del", delete)
    context = SimpleNamespace(get_job_id=lambda: "01")
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setattr(unsaved, "ray", ray)
    return values


def place(rank=0, **change):
    return replace(worker_of(rank, 2), **{"group": "one", **change})


@pytest.mark.parametrize(
    ("reported", "committed", "failed", "told"),
    [
        (8, 8, False, None),
        (8, 8, True, None),
        (8, 10, False, "run 'run' has ended with 2 committed steps (8 to 9) in no checkpoint: call"),
        (8, 10, True, "run 'run' has failed with 2 committed steps (8 to 9) in no checkpoint; they are lost"),
        (8, None, False, "run 'run' has ended with its loader open: steps committed after the 8 that"),
        (8, None, True, None),
    ],
)
def test_what_is_told_is_what_is_known(reported, committed, failed, told, caplog):
    note(place(), None, reported, committed)
    log_unsaved("run", failed=failed)
    assert [record.getMessage()[: len(told or "")] for record in caplog.records] == ([told] if told else [])
    assert notes("run") == {}


def test_each_loader_of_a_run_is_told_by_its_name(caplog):
    for name, committed in (("train", 3), ("other", 0), (None, 2)):
        note(place(), name, 0, committed)
    log_unsaved("run", failed=False)
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(" has ended")[0] for text in told] == ["run 'run'", "run 'run', loader 'train',"]


def test_notes_of_an_attempt_go_when_the_next_one_begins_and_peers_of_rank_0_note_nothing():
    note_start(place(), "gone", 0)
    note(place(), "kept", 0, 5)
    note_start(place(group="two"), "kept", 4)
    note_start(place(group="two"), "another", 0)
    note(place(rank=1), "kept", 9, 9)
    assert notes("run") == {"kept": Note(4), "another": Note(0)}


def test_runs_whose_names_begin_alike_have_notes_of_their_own():
    for name in ("run", "run:", "run:1"):
        note(place(run_name=name), None, 0, 1)
    forget("run")
    assert notes("run") == {}
    assert list(notes("run:")) == list(notes("run:1")) == [""]
