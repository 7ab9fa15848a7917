"""Failures that a run survives are logged; in strict mode, in which all tests run, they are raised."""

import inspect
import logging

import pytest

from raypack.errors import DegradedError
from raypack.guards import STRICT_VARIABLE, degrade, guard, is_strict

logger = logging.getLogger(__name__)


@guard(logger, "the count of %s failed; it is made again", "batches")
def count(divisor, *, dividend=6):
    return dividend // divisor


def test_the_tests_run_in_strict_mode():
    assert is_strict()


def test_strict_mode_raises_what_a_guard_would_log():
    with pytest.raises(ZeroDivisionError):
        count(0)
    with pytest.raises(ValueError, match="inside"), guard(logger, "it failed"):
        raise ValueError("inside")


@pytest.mark.parametrize("value", [None, "0", ""])
def test_outside_of_strict_mode_a_guard_logs_the_traceback_and_goes_on(value, monkeypatch, caplog):
    if value is None:
        monkeypatch.delenv(STRICT_VARIABLE)
    else:
        monkeypatch.setenv(STRICT_VARIABLE, value)
    assert count(0) is None
    assert "the count of batches failed; it is made again" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert count(0) is None  # a guard serves any number of calls
    assert caplog.text.count("Traceback") == 2


def test_a_guard_lets_results_and_the_end_of_the_process_through(lenient):
    assert count(2) == 3
    with pytest.raises(KeyboardInterrupt), guard(logger, "it failed"):
        raise KeyboardInterrupt


def test_a_guarded_function_keeps_its_parameters():
    assert list(inspect.signature(count).parameters) == ["divisor", "dividend"]


def test_strict_mode_raises_in_place_of_a_lesser_way():
    with pytest.raises(DegradedError, match="no cache on node 3"):
        degrade(logger, "no cache on node %d", 3)


def test_outside_of_strict_mode_a_lesser_way_is_logged_each_time_or_once(lenient, caplog):
    for _ in range(3):
        degrade(logger, "no cache on node %d", 3)
        degrade(logger, "no range on node %d", 3, once=True)
    assert caplog.text.count("no cache on node 3") == 3
    assert caplog.text.count("no range on node 3") == 1
