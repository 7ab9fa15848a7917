"""One chaotic run from start to proof."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import ray
import torch

from raypack.audit import verify
from raypack.checkpoint.locate import last_checkpoint, open_path
from raypack.source import write_source
from tests.chaos import driver
from tests.chaos.plan import Plan
from tests.chaos.reference import trained_by_one
from tests.conftest import documents_table, long_tailed

PATIENCE_S = 900
EXAMPLES = 1201
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Outcome:
    """What came of a run."""

    kills: list[str]
    """Those that were done, with the step and the world they struck."""
    worlds: list[int]
    lost: int
    """Steps that were computed again."""
    seconds: float
    findings: list[str]
    """What is wrong; empty when all is well."""


def run_plan(plan: Plan, place: Path, cluster) -> Outcome:
    """Run a plan on a cluster and prove it.

    Args:
        plan: What happens.
        place: An empty folder.
        cluster: A `Nodes`.
    """
    began = time.monotonic()
    source = write_source(str(place / "source"), [documents_table(long_tailed(EXAMPLES, seed=plan.seed))])
    (place / "plan.json").write_text(json.dumps(plan.to_dict()))
    before = _left_over()
    _drive(plan, place, cluster, began)
    findings = _findings(plan, place, source)
    findings += [f"left over: {name}" for name in sorted(_left_over_soon(before))]
    audit = verify(place / f"storage/{driver.RUN}")
    kills = []
    for kill in plan.kills:
        marker = place / f"kill-{kill.number}"
        if marker.exists():
            kills.append(f"{kill.kind}@{json.loads(marker.read_text())['step']}")
    computed = len((place / "progress").read_text().splitlines())
    lineage = sum(attempt.steps for attempt in audit.attempts)
    return Outcome(
        kills, [a.world_size for a in audit.attempts], computed - lineage, time.monotonic() - began, findings
    )


def _drive(plan: Plan, place: Path, cluster, began: float) -> None:
    """Start the driver, again whenever it was killed, until all phases are done."""
    outside = [kill for kill in plan.kills if kill.kind in ("driver", "node")]
    command = [sys.executable, "-m", "tests.chaos.driver", str(place), cluster.address]
    while not (place / "phase-3-done").exists():
        (place / "driver-ready").unlink(missing_ok=True)
        with open(place / "driver.log", "ab") as log:
            process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
        try:
            while process.poll() is None:
                if time.monotonic() - began > PATIENCE_S:
                    raise AssertionError(f"the run hangs: {(place / 'driver.log').read_text()[-3000:]}")
                _strike(outside, place, process, cluster)
                time.sleep(0.1)
        finally:
            process.kill()
        if process.returncode not in (0, -9):
            raise AssertionError((place / "driver.log").read_text()[-5000:])


def _strike(kills, place: Path, process, cluster) -> None:
    """Kill the driver or a node where that is due."""
    progress = place / "progress"
    step = len(progress.read_text().splitlines()) if progress.exists() else 0
    for kill in kills:
        marker = place / f"kill-{kill.number}"
        if marker.exists() or step < kill.step or not (place / "driver-ready").exists():
            continue
        marker.write_text(json.dumps({"step": step}))
        if kill.kind == "driver":
            process.kill()
            process.wait()
        else:
            cluster.lose_a_node()


def _findings(plan: Plan, place: Path, source) -> list[str]:
    run = place / f"storage/{driver.RUN}"
    audit = verify(run)
    findings = list(audit.findings) or ([] if audit.ok else [f"the audit says {audit.verdict}"])
    if [(e.complete, e.trained) for e in audit.epochs] != [(True, EXAMPLES)] * 2:
        findings.append(f"epochs: {[(e.epoch, e.complete, e.trained) for e in audit.epochs]}")
    filesystem, path = open_path(run)
    trained = torch.load(last_checkpoint(filesystem, path) + "/model.pt")
    recipe = driver.recipe_of(plan.to_dict(), source.path)
    expected = trained_by_one(source, plan.to_dict(), recipe, audit.attempts)
    for name, value in expected.items():
        if not torch.allclose(value, trained[name], rtol=0, atol=1e-9):
            findings.append(f"{name} differs by {(value - trained[name]).abs().max():g}")
    return findings


def _left_over() -> set[str]:
    """Temporary folders and named actors of raypack's, alive now."""
    folders = {str(path) for path in Path(tempfile.gettempdir()).glob("raypack-*")}
    actors = ray.util.list_named_actors(all_namespaces=True)
    return folders | {actor["name"] for actor in actors if actor["name"].startswith("raypack")}


def _left_over_soon(before: set[str]) -> set[str]:
    """What is left over once processes had time to end."""
    deadline = time.monotonic() + 30
    while (left := _left_over() - before) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


class Nodes:
    """A head without slots for train workers, and nodes that can be lost.

    Args:
        count: How many nodes beside the head; none: the head does all.
    """

    def __init__(self, count: int) -> None:
        from ray.cluster_utils import Cluster

        self._short = tempfile.mkdtemp(prefix="rp", dir="/tmp")
        os.makedirs(f"{self._short}/ray")
        os.environ["RAY_TMPDIR"] = self._short
        head = {"num_cpus": 4, "object_store_memory": 200 << 20, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._add() for _ in range(count)]
        self.address = self._cluster.address
        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")

    def _add(self):
        return self._cluster.add_node(num_cpus=2, object_store_memory=200 << 20)

    def lose_a_node(self) -> None:
        """Kill a node and add a fresh one."""
        self._cluster.remove_node(self._nodes.pop(0), allow_graceful=False)
        self._nodes.append(self._add())

    def close(self) -> None:
        """End the cluster."""
        ray.shutdown()
        self._cluster.shutdown()
        os.environ.pop("RAY_TMPDIR", None)
