"""An audit says complete only where the run's goal is reached and each planned example was trained once."""

import json

import pytest
from click.testing import CliRunner

from raypack.audit import verify
from raypack.audit.verdict import EpochAudit
from raypack.checkpoint.goal import Goal
from raypack.checkpoint.ledger import Refused
from raypack.cli import main
from tests.conftest import long_tailed
from tests.support.state_factory import run_of, trained

EPOCH = 150


@pytest.fixture
def source(make_source):
    return make_source(long_tailed(EPOCH))


@pytest.fixture
def whole(source):
    """Steps of an epoch."""
    return trained(source).step


def audited(tmp_path, source, **how):
    return verify(run_of(tmp_path, trained(source, **how)))


def command(run, *flags):
    return CliRunner().invoke(main, ["verify", str(run), *flags], env={"COLUMNS": "200"})


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_run_that_reached_its_epochs_is_complete(tmp_path, source, epochs):
    audit = audited(tmp_path, source, epochs=epochs)
    assert (audit.verdict, audit.ok, audit.consistent) == ("complete", True, True)
    assert audit.goal == Goal(epochs=epochs)
    assert audit.not_trained.examples == audit.not_trained.skipped_examples == 0
    assert audit.left_out == ()


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ({"steps": 0}, EPOCH),
        ({"steps": 3}, None),
        ({"epochs": 1, "goal": Goal(epochs=3)}, 2 * EPOCH),
        ({"steps": 3, "goal": Goal(epochs=1, max_steps=4)}, None),
        ({"steps": 0, "goal": Goal(epochs=1, max_steps=4)}, EPOCH),
    ],
    ids=["no step", "some steps", "1 of 3 epochs", "3 of 4 steps", "no step of 4"],
)
def test_a_run_before_its_goal_is_consistent_so_far_and_what_is_not_trained_is_counted(
    tmp_path, source, how, left
):
    state = trained(source, **how)
    run = run_of(tmp_path, state)
    audit = verify(run)
    assert (audit.verdict, audit.ok, audit.consistent) == ("consistent so far", False, True)
    if left is None:
        left = EPOCH - state.ledger.epochs[0].receipt.examples
    assert audit.not_trained.examples == left
    done = command(run)
    assert done.exit_code == 3
    assert f"not trained yet: {left:,} examples" in done.output
    assert command(run, "--so-far").exit_code == 0
    assert command(run, "--allow-skipped").exit_code == 3


def test_a_run_whose_steps_were_all_skipped_is_not_complete(tmp_path, source, whole):
    run = run_of(tmp_path, trained(source, skipped=range(whole)))
    audit = verify(run)
    assert audit.reached
    assert (audit.verdict, audit.ok, audit.consistent) == ("consistent so far", False, True)
    assert audit.not_trained.skipped_examples == EPOCH
    done = command(run)
    assert done.exit_code == 3
    assert f"not trained: {EPOCH} examples in {whole} skipped steps" in done.output
    assert [command(run, flag).exit_code for flag in ("--so-far", "--allow-skipped")] == [3, 0]


def test_an_unfinished_run_with_skipped_steps_needs_both_allowances(tmp_path, source):
    run = run_of(tmp_path, trained(source, steps=4, skipped=[2]))
    flags = [(), ("--so-far",), ("--allow-skipped",), ("--so-far", "--allow-skipped")]
    assert [command(run, *each).exit_code for each in flags] == [3, 3, 3, 0]


def test_max_steps_reached_in_mid_epoch_is_complete_and_what_it_leaves_out_is_named(tmp_path, source):
    state = trained(source, steps=5, goal=Goal(epochs=3, max_steps=5))
    left = EPOCH - state.ledger.epochs[0].receipt.examples
    run = run_of(tmp_path, state)
    audit = verify(run)
    assert audit.ok
    assert audit.not_trained.examples == 0
    assert audit.left_out == (
        f"max_steps=5 leaves out {left} of 150 examples of epoch 0",
        "max_steps=5 leaves out epochs 1 to 2, 150 examples each",
    )
    done = command(run)
    assert done.exit_code == 0
    assert f"on purpose: max_steps=5 leaves out {left} of 150 examples of epoch 0" in done.output
    assert "audit: complete: every planned example exactly once" in done.output


def test_max_steps_beyond_the_epochs_leaves_nothing_out(tmp_path, source, whole):
    audit = audited(tmp_path, source, goal=Goal(epochs=1, max_steps=whole + 1))
    assert audit.ok
    assert audit.left_out == ()


def test_fewer_epochs_at_a_resume_are_the_goal_from_there(tmp_path, source, whole):
    audit = audited(tmp_path, source, epochs=2, steps=3, goal=Goal(epochs=1))
    assert audit.ok
    (said,) = audit.left_out
    assert "examples of epoch 1" in said
    assert said.startswith("epochs=1, which the run was given when epoch 1 had begun, leaves out")


def test_a_fault_is_exit_1_whatever_is_allowed(tmp_path, source):
    run = run_of(tmp_path, trained(source, change=lambda step, k: 0 if (step, k) == (2, 1) else 1))
    for flags in ((), ("--so-far", "--allow-skipped")):
        done = command(run, *flags)
        assert done.exit_code == 1
        assert "audit: NOT proven" in done.output
    assert not verify(run).consistent


@pytest.mark.parametrize("flags", [(), ("--so-far", "--allow-skipped")])
def test_where_no_run_is_the_exit_code_is_2_and_one_line_says_so(tmp_path, flags):
    for path in (tmp_path / "nowhere", tmp_path):
        done = command(path, *flags)
        assert done.exit_code == 2
        (line,) = done.output.splitlines()
        assert f"{path} must be the directory of a run" in line


def test_json_holds_the_whole_audit(tmp_path, source):
    run = run_of(tmp_path, trained(source, steps=4, skipped=[2]))
    done = command(run, "--json")
    assert done.exit_code == 3
    values = json.loads(done.stdout)
    audit = verify(run)
    assert values == json.loads(json.dumps(audit.to_dict()))
    assert values["verdict"] == "consistent so far"
    assert values["goal"] == {"epochs": 1, "max_steps": None}
    assert values["not_trained"]["skipped_steps"] == 1
    assert values["epochs"][0]["refused"]["numbers"] == [2]
    nowhere = command(tmp_path / "nowhere", "--json")
    assert nowhere.exit_code == 2
    assert json.loads(nowhere.stdout)["verdict"] == "no run"


def test_batches_that_no_gradient_was_seen_of_are_a_remark_and_no_fault(tmp_path, source):
    audit = audited(tmp_path, source)
    (epoch,) = audit.epochs
    assert audit.remarks == ()
    seen = {name: getattr(epoch, name) for name in EpochAudit.__slots__}
    silent = type(audit)(audit.checkpoint, epochs=(EpochAudit(**{**seen, "batches": 12, "observed": 4}),))
    (remark,) = silent.remarks
    assert "no gradient was seen to reach 8 of the losses of 12 batches" in remark
    assert silent.consistent


def test_more_skipped_steps_than_steps_are_a_fault(tmp_path, source):
    state = trained(source, steps=3)
    (entry,) = state.ledger.epochs
    forged = Refused(steps=4, numbers=(0, 1, 2, 3))
    object.__setattr__(entry, "refused", forged)
    audit = verify(run_of(tmp_path, state))
    assert "3 steps, 4 of them skipped" in audit.findings[0]
