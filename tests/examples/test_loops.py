"""The examples of other stacks: a worker killed, resumed on fewer, audited."""

import importlib.util
import os
import sys

import pytest

from tests.support.head import ROOT
from tests.support.killing import a_worker_killed
from tests.support.local_ray import local_ray


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(("name", "run"), [("accelerate_loop", "accelerate"), ("fsdp2", "fsdp2")])
def test_an_example_whose_worker_is_killed_resumes_and_on_fewer_workers_too_and_is_proven(
    name, run, tmp_path, monkeypatch
):
    if name == "accelerate_loop":
        pytest.importorskip("accelerate")
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, example)
    spec.loader.exec_module(example)
    with local_ray(example, cpus=4), a_worker_killed(tmp_path / run, os.getpid()):
        assert example.story(tmp_path, gpu=False)
