"""The example itself, as a module."""

import importlib.util

import pytest

from tests.support.head import ROOT


@pytest.fixture(scope="session")
def example():
    spec = importlib.util.spec_from_file_location("example_job", ROOT / "examples/job/train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
