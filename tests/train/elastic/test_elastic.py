"""A run on a cluster of nodes that join and vanish: saved before it grows, gone on when it shrinks.

pytest -m slow tests/train/elastic/test_elastic.py
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from raypack.audit import verify
from raypack.source import write_source
from raypack.train import PackedData, RaypackCallback
from tests.conftest import documents_table, long_tailed
from tests.support import train_functions

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PATIENCE_S = 240


@pytest.fixture(scope="module")
def cluster():
    cloudpickle.register_pickle_by_value(train_functions)
    short = tempfile.mkdtemp(prefix="rp", dir="/tmp")  # sockets lie below it, and their paths must be short
    os.makedirs(f"{short}/ray")
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = short
    head = {
        "num_cpus": 4,
        "resources": {"slot": 1},
        "object_store_memory": 200 << 20,
        "include_dashboard": False,
    }
    one = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=one.address, log_to_driver=False)
    yield one
    ray.shutdown()
    one.shutdown()
    os.environ.pop("RAY_TMPDIR")
    if before is not None:
        os.environ["RAY_TMPDIR"] = before
    cloudpickle.unregister_pickle_by_value(train_functions)


def events(place):
    """What rank 0 wrote down: a line at each start and each step."""
    path = place / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def await_event(place, run, **wanted):
    """Wait for a line that holds the wanted values."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and run.is_alive():
        if any(all(event.get(k) == v for k, v in wanted.items()) for event in events(place)):
            return
        time.sleep(0.2)
    raise AssertionError(f"no {wanted} in {events(place)[-3:]}")


def drain(cluster, node):
    """Announce that a node will be taken away in two minutes, as a cloud does for a spot instance."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", cluster.address]
    command += ["--node-id", node.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message", "reclaimed", "--deadline-remaining-seconds", "120"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def story(cluster, tmp_path_factory):
    """1 worker; a node joins: 3 workers; it is reclaimed and vanishes: 1 worker goes on to the end."""
    place = tmp_path_factory.mktemp("elastic")
    source = write_source(str(place / "source"), [documents_table(long_tailed(20_000, seed=4))])
    recipe = PackedData(source=source.path, maximum_tokens=64, batches_per_step=6, seed=3)
    trainer = TorchTrainer(
        train_functions.elastic,
        train_loop_config={"recipe": recipe, "scratch": str(place)},
        scaling_config=ScalingConfig(
            num_workers=(1, 3),
            resources_per_worker={"CPU": 0.25, "slot": 1},
            elastic_resize_monitor_interval_s=2.0,
        ),
        run_config=RunConfig(
            name="elastic",
            storage_path=str(place / "storage"),
            failure_config=FailureConfig(max_failures=3),
            callbacks=[RaypackCallback()],
            worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
        ),
    )
    outcome = []
    run = threading.Thread(target=lambda: outcome.append(trainer.fit()), daemon=True)
    run.start()
    await_event(place, run, world=1, step=15)
    node = cluster.add_node(num_cpus=2, resources={"slot": 2}, object_store_memory=200 << 20)
    await_event(place, run, event="start", world=3)
    first = next(e["step"] for e in events(place) if e.get("event") == "start" and e["world"] == 3)
    await_event(place, run, world=3, step=first + 25)
    drain(cluster, node)
    await_event(place, run, world=3, event="saved", regular=False)
    cluster.remove_node(node, allow_graceful=False)
    vanished = time.monotonic()
    Path(place / "finish").touch()
    run.join(PATIENCE_S)
    assert outcome
    return place, time.monotonic() - vanished


def test_a_run_that_grows_and_loses_a_node_trains_each_example_once(story):
    place, _ = story
    audit = verify(place / "storage/elastic")
    assert audit.consistent, audit.findings
    assert [attempt.world_size for attempt in audit.attempts] == [1, 3, 1]


def test_growing_loses_no_step(story):
    place, _ = story
    lines = events(place)
    grown = next(k for k, e in enumerate(lines) if e.get("event") == "start" and e["world"] == 3)
    trained = [e["step"] for e in lines[:grown] if "event" not in e]
    assert lines[grown]["step"] == trained[-1] + 1


def test_a_node_that_is_reclaimed_is_saved_for_before_it_goes(story):
    place, _ = story
    lines = events(place)
    reclaimed = next(k for k, e in enumerate(lines) if e.get("event") == "saved" and e["world"] == 3)
    last = max(k for k, e in enumerate(lines) if e.get("event") == "start")
    saves = [e["step"] for e in lines[reclaimed:last] if e.get("event") == "saved"]
    assert lines[last]["world"] == 1
    assert lines[last]["step"] in saves[-2:]  # the very last may not be registered when the node goes
