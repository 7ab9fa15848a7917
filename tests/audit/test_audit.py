"""The audit on checkpoints that real planners made, without a cluster."""

import threading

import pytest

from raypack.audit import verify
from raypack.source import open_source
from tests.conftest import long_tailed
from tests.support.state_factory import name_of, run_of, trained


@pytest.fixture
def source(make_source):
    return make_source(long_tailed(150))


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("steps", [None, 3])
def test_a_faithful_run_passes(tmp_path, source, epochs, steps):
    audit = verify(run_of(tmp_path, trained(source, epochs=epochs, steps=steps)))
    assert audit.consistent, audit.findings
    assert audit.ok == (steps is None)
    assert [e.complete for e in audit.epochs] == [True] * (epochs - 1) + [steps is None]
    assert audit.epochs[0].examples == 150
    assert sum(a.steps for a in audit.attempts) == sum(e.steps for e in audit.epochs)


def test_one_checkpoint_can_be_audited_alone(tmp_path, source):
    state = trained(source, steps=4)
    run = run_of(tmp_path, state)
    assert verify(run / name_of(state)).consistent


def test_a_dropped_batch_is_caught_and_its_step_named(tmp_path, source):
    state = trained(source, change=lambda step, k: 0 if (step, k) == (2, 1) else 1)
    audit = verify(run_of(tmp_path, state))
    assert not audit.ok
    assert "a batch of step 2" in audit.findings[0]
    assert "was not trained" in audit.findings[0]


def test_a_repeated_batch_is_caught_and_its_step_named(tmp_path, source):
    state = trained(source, change=lambda step, k: 2 if (step, k) == (3, 0) else 1)
    audit = verify(run_of(tmp_path, state))
    assert "a batch of step 3" in audit.findings[0]
    assert "was trained twice" in audit.findings[0]


def test_a_batch_in_place_of_another_is_caught_and_both_steps_named(tmp_path, source):
    state = trained(source, change=lambda step, k: {(1, 0): 0, (4, 2): 2}.get((step, k), 1))
    audit = verify(run_of(tmp_path, state))
    assert "a batch of step 1 was not trained, one of step 4 twice" in audit.findings[0]


def test_a_single_example_is_named(tmp_path, make_source):
    source = make_source([60] * 30)  # one example a batch
    state = trained(source, change=lambda step, k: 0 if (step, k) == (2, 1) else 1)
    index = next(iter(_planned(source, 2)[1].indices))
    audit = verify(run_of(tmp_path, state))
    assert f"example {index} was not trained" in audit.findings[0]


def _planned(source, step):
    from raypack.batching.options import TokenBatchOptions
    from raypack.batching.steps.planner import StepPlanner

    planner = StepPlanner(
        source.fingerprint, source.lengths, TokenBatchOptions(64), batches_per_step=4, seed=1
    )
    return planner.steps(step, step + 1)[0].batches


def test_two_dropped_batches_are_caught_though_not_told(tmp_path, source):
    state = trained(source, change=lambda step, k: 0 if step == 2 and k < 2 else 1)
    audit = verify(run_of(tmp_path, state))
    assert not audit.ok
    assert "planned 150 examples" in audit.findings[0]


def test_another_source_is_refused_and_what_changed_is_said(tmp_path, source, make_source):
    run = run_of(tmp_path, trained(source, steps=3))
    other = make_source(long_tailed(151), name="other")
    audit = verify(run, source=other.path)
    assert not audit.ok
    assert "is not the one that the run trained" in audit.findings[0]
    assert "151" in audit.findings[0]


def test_a_source_that_moved_is_found_by_its_new_path(tmp_path, source):
    run = run_of(tmp_path, trained(source, steps=3))
    moved = tmp_path / "moved"
    open_source(source.path)
    (tmp_path / "source").rename(moved)
    assert verify(run).verdict == "fault"
    assert verify(run, source=moved).consistent


def test_a_damaged_checkpoint_is_a_finding(tmp_path, source):
    state = trained(source, steps=3)
    run = run_of(tmp_path, state)
    (run / name_of(state) / "raypack/state.json").write_text("{")
    audit = verify(run)
    assert not audit.ok
    assert "state.json" in audit.findings[0]


@pytest.mark.parametrize("content", [None, "{", "{}", '{"latest_checkpoint_result": null}'])
def test_what_is_no_run_is_a_finding(tmp_path, content):
    if content is not None:
        (tmp_path / "checkpoint_manager_snapshot.json").write_text(content)
    audit = verify(tmp_path)
    assert audit.findings
    assert audit.checkpoint == ""
    assert not audit.consistent
    assert audit.verdict == ("fault" if content in ("{", "{}") else "no run")


@pytest.mark.parametrize("path", ["zzz://x/y", "s3://%%%", "", "a\0b"])
def test_what_is_no_path_is_a_finding(path):
    audit = verify(path)
    assert audit.verdict == "no run"
    assert "the run must be a path or a URI" in audit.findings[0]


def test_a_list_of_checkpoints_that_the_run_is_just_writing_is_read_again(tmp_path, source):
    run = run_of(tmp_path, trained(source, steps=3))
    file = run / "checkpoint_manager_snapshot.json"
    whole = file.read_text()
    file.write_text("")
    timer = threading.Timer(0.2, file.write_text, [whole])
    timer.start()
    assert verify(run).consistent
    timer.join()
