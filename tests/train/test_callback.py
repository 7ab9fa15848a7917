"""RaypackCallback in one process, called by Ray's own code: reports, hooks and a Ray without hooks."""

import importlib.util
import inspect
import logging
import sys
from types import SimpleNamespace

import pyarrow.fs as pafs
import pytest
import ray
from ray.train import Checkpoint
from ray.train.v2._internal.callbacks.user_callback import UserCallbackHandler
from ray.train.v2._internal.execution.callback_manager import CallbackManager
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.checkpoint.report_handler import ReportCallbackHandler
from ray.train.v2._internal.execution.training_report import _TrainingReport
from ray.train.v2.api.exceptions import ControllerError

from raypack.errors import DegradedError, RaypackError
from raypack.train import RaypackCallback, callback
from raypack.train.driver import resizing
from raypack.train.reporting.saving import REASON, RESIZE
from tests.conftest import long_tailed
from tests.support.local_run import Attempt, patch
from tests.support.running import recipe_of

LOGGER = "raypack.train"


@pytest.fixture
def checkpoint(make_source, tmp_path, monkeypatch):
    """A checkpoint of a real loader after three steps."""
    patch(monkeypatch)
    source = make_source(long_tailed(400, seed=2))
    with Attempt(recipe_of(source, backend="direct"), source, 1) as attempt:
        (loader,) = attempt.loaders
        steps = iter(loader)
        for _ in range(3):
            list(step := next(steps))
            step.commit()
        return attempt.save(tmp_path, "report_id")


def training_report(folder, metrics):
    checkpoint = Checkpoint(str(folder), pafs.LocalFileSystem()) if folder else None
    return _TrainingReport(checkpoint=checkpoint, metrics=metrics, validation=False)


class Group:
    """A worker group of one rank, as far as Ray's report handler and the callback look at it."""

    def __init__(self, *answers, able=True):
        self.answers, self.able = list(answers), able
        manager = object.__new__(CheckpointManager)
        manager._checkpoint_results = []
        self._callbacks = [manager]

    def __len__(self):
        return 1

    def execute(self, function, *arguments):
        if isinstance(self.able, Exception):
            raise self.able
        return [self.able]

    def poll_status(self, timeout):
        return self.answers.pop(0)() if self.answers else status()


def status(**more):
    return SimpleNamespace(**{"errors": {}, "finished": False, **more})


def poll(report):
    """What Ray's report handler takes from a poll: one rank with one report."""
    worker = SimpleNamespace(training_report=report, running=True, error=None)
    return SimpleNamespace(
        worker_statuses={0: worker}, preemption_info=None, errors={}, finished=False, required_ranks=None
    )


def report_through_ray(one, folder, metrics=None):
    """Give a report to the callback as Ray's controller does."""
    handler = ReportCallbackHandler(report_callbacks=[one])
    handler.after_worker_group_start(Group())
    given = training_report(folder, metrics or {})
    handler.after_worker_group_poll_status(poll(given))


# -- reports --------------------------------------------------------------------------------------


def test_a_whole_checkpoint_is_verified_by_name_and_step(checkpoint, caplog):
    with caplog.at_level(logging.INFO, LOGGER):
        report_through_ray(RaypackCallback(), checkpoint)
    assert f"verified {checkpoint}: step 3" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_a_damaged_checkpoint_is_an_error_with_its_file_and_fault(checkpoint, caplog):
    state = checkpoint / "raypack/state.json"
    state.write_bytes(state.read_bytes()[:-7])
    report_through_ray(RaypackCallback(), checkpoint)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "the checkpoint cannot be resumed from" in record.getMessage()
    assert "state.json" in record.getMessage()


def test_a_report_without_a_checkpoint_reads_none_and_a_save_by_raypack_counts(caplog):
    one = RaypackCallback()
    report_through_ray(one, None)
    assert one._saves == 0
    report_through_ray(one, None, {REASON: RESIZE})
    assert one._saves == 1
    assert not caplog.records


def test_what_fails_in_a_hook_ends_a_strict_run_alone(monkeypatch, caplog, tmp_path):
    def broken(*_):
        raise KeyError("moved")

    monkeypatch.setattr(callback, "check_state", broken)
    with pytest.raises(KeyError, match="moved"):
        report_through_ray(RaypackCallback(), tmp_path)
    monkeypatch.setenv("RAYPACK_STRICT", "0")
    report_through_ray(RaypackCallback(), tmp_path)
    assert "raypack's callback failed in after_report; the run goes on" in caplog.text
    assert "KeyError: 'moved'" in caplog.text


# -- resizes --------------------------------------------------------------------------------------


def resize(one, group):
    """Let Ray's callback manager tell of a group's start and of a planned resize."""
    one.after_worker_group_start(group)
    CallbackManager([one]).invoke("before_controller_execute_resize_decision", SimpleNamespace(num_workers=4))
    return one.resizes


def test_a_save_before_a_resize_is_counted_and_the_wait_recorded_and_logged(caplog):
    one = RaypackCallback()

    def saves():
        report_through_ray(one, None, {REASON: RESIZE})
        return status(finished=True)

    with caplog.at_level(logging.INFO, LOGGER):
        (save,) = resize(one, Group(status, status, saves))
    assert (save.workers, save.outcome) == (4, "saved")
    assert save.waited_s >= 2 * resizing._POLL_S
    assert f"before the resize to 4 workers: saved; the resize waited {save.waited_s:.2f} s" in caplog.text


@pytest.mark.parametrize(
    ("group", "outcome", "told"),
    [
        (Group(able=False), "unable", "has not reported yet"),
        (Group(lambda: status(errors={0: "lost"})), "failed", "a rank failed"),
        (Group(able=ray.exceptions.RayActorError()), "failed", "a rank cannot be asked"),
        (Group(lambda: status(finished=True)), "ended", "the train function has ended"),
        (Group(), "late", "give more time"),
    ],
)
def test_a_resize_goes_on_without_a_save_where_none_can_be_had(group, outcome, told, caplog):
    with caplog.at_level(logging.INFO, LOGGER):
        (save,) = resize(RaypackCallback(save_timeout_s=0.2), group)
    assert save.outcome == outcome
    assert told in caplog.text
    assert (save.waited_s >= 0.2) == (outcome == "late")


def test_a_restart_after_a_failure_and_a_group_that_is_gone_are_not_asked_to_save():
    one = RaypackCallback()
    one.after_worker_group_start(Group(able=ValueError("asked")))
    manager = CallbackManager([one])
    manager.invoke("before_controller_execute_failure_decision", object())
    manager.invoke("before_controller_execute_resize_decision", SimpleNamespace(num_workers=2))
    one.after_worker_group_start(Group(able=ValueError("asked")))
    with pytest.raises(ControllerError, match="asked"):
        manager.invoke("before_controller_execute_resize_decision", SimpleNamespace(num_workers=2))
    one.before_worker_group_shutdown(Group())
    manager.invoke("before_controller_execute_resize_decision", SimpleNamespace(num_workers=2))
    assert one.resizes == []


# -- how Ray calls --------------------------------------------------------------------------------


def test_every_hook_has_the_parameters_of_the_installed_ray():
    for name in callback._needed:
        declared = next(getattr(base, name) for base in callback._bases if hasattr(base, name))
        own = inspect.signature(getattr(RaypackCallback, name)).parameters
        assert list(own) == list(inspect.signature(declared).parameters), name


def test_a_hook_with_other_parameters_than_rays_is_refused_when_the_callback_is_made():
    class Other(RaypackCallback):
        def after_report(self, context, metrics, checkpoint=None):
            pass

    with pytest.raises(RaypackError, match=r"Other\.after_report must take \(self, training_report, m"):
        Other()


@pytest.mark.parametrize("name", callback._needed)
def test_a_ray_that_calls_a_hook_otherwise_is_refused_when_the_callback_is_made(name, monkeypatch):
    base = next(base for base in callback._bases if name in vars(base))
    monkeypatch.setattr(base, name, lambda self, something_else: None)
    with pytest.raises(RaypackError, match=rf"RaypackCallback\.{name} must take \(self, something_else\)"):
        RaypackCallback()
    monkeypatch.delattr(base, name)
    with pytest.raises(RaypackError, match=rf"needs the hook {name}, which Ray .* does not have"):
        RaypackCallback()


# -- a Ray without its internal hooks --------------------------------------------------------------


@pytest.fixture
def degraded(monkeypatch):
    """The callback's module as it is imported where Ray's internals have moved."""
    monkeypatch.setitem(sys.modules, "ray.train.v2._internal.execution.callback", None)
    spec = importlib.util.spec_from_file_location("raypack.train.callback_without_hooks", callback.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_rays_hooks_checkpoints_are_verified_through_the_public_interface(
    degraded, checkpoint, lenient, caplog
):
    one = degraded.RaypackCallback()
    (record,) = caplog.records
    assert "no hook before a resize" in record.getMessage()
    assert isinstance(one, ray.train.UserCallback)
    handler = UserCallbackHandler(user_callbacks=[one], train_run_context=None)

    def report(folder):
        handler.after_report(training_report=training_report(folder, {}), metrics=[{}])

    with caplog.at_level(logging.INFO):
        report(checkpoint)
        report(None)
        assert f"verified {checkpoint}: step 3" in caplog.text
        (checkpoint / "raypack/state.json").unlink()
        report(checkpoint)
    assert "the checkpoint cannot be resumed from" in caplog.text
    handler.after_worker_group_poll_status(SimpleNamespace(errors={0: RuntimeError("lost")}))


def test_in_strict_mode_a_ray_without_hooks_is_an_error(degraded):
    with pytest.raises(DegradedError, match="no hook before a resize"):
        degraded.RaypackCallback()
