"""The example with Accelerate, where that is installed: stopped, resumed on fewer workers, audited."""

import importlib.util
import sys

import pytest

from tests.examples.head import ROOT
from tests.local_ray import local_ray

pytest.importorskip("accelerate")


@pytest.mark.ray
@pytest.mark.slow
def test_the_loop_with_accelerate_resumes_on_another_number_of_workers_and_is_proven(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("accelerate_loop", ROOT / "examples/accelerate_loop.py")
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "accelerate_loop", example)
    spec.loader.exec_module(example)
    with local_ray(example, cpus=4):
        assert example.story(tmp_path, gpu=False)
