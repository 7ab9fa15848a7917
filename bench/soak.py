"""A long run: a thousand steps and a hundred restarts; memory, threads, actors and objects stay flat.

    python bench/soak.py [--restarts 100] [--steps 10] [--plain]

Each attempt trains some steps, reports, and fails; Ray Train starts the next from the checkpoint. What
the processes of the run hold is written down at each start. ``--plain`` is the same run without raypack,
to tell what Ray Train itself leaves behind.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import ray
import ray.train
from ray import cloudpickle
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from rich.console import Console
from rich.table import Table

import raypack
from raypack.source import write_source
from raypack.train import PackedData, RaypackCallback, get_loader, report


class AttemptError(Exception):
    """Ends an attempt."""


def train(config):
    """Train some steps and fail; the last attempt goes on to the end."""
    with get_loader(config["recipe"]) as loader:
        write_down(loader.steps_done, config)
        first = loader.steps_done
        for step in loader:
            for _ in step:
                pass
            step.commit()
            if step.index == first + config["steps"] - 1:
                report({"step": step.index}, loader)
                if loader.steps_done < config["total"]:
                    raise AttemptError(f"the end of the attempt that began at step {first}")
        report({"step": loader.steps_done}, loader)


def train_plain(config):
    """Do the same with Ray Train alone."""
    checkpoint = ray.train.get_checkpoint()
    step = int(Path(checkpoint.path, "step").read_text()) if checkpoint else 0
    write_down(step, config)
    step += config["steps"]
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "step").write_text(str(step))
        ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(directory))
    if step < config["total"]:
        raise AttemptError(f"the end of the attempt before step {step}")


def write_down(step, config):
    """Add a line of what is held to the run's notes."""
    with open(Path(config["place"], "attempts.jsonl"), "a") as file:
        file.write(json.dumps(held(step, config["driver"])) + "\n")


def held(step, driver):
    """What the run's processes hold now."""
    raylet = psutil.Process().parent()
    workers = [p for p in raylet.children() if p.status() != psutil.STATUS_ZOMBIE]
    controller = next((p for p in workers if "TrainController" in " ".join(p.cmdline())), None)
    shared = ray.cluster_resources().get("object_store_memory", 0)
    named = [a for a in ray.util.list_named_actors(all_namespaces=True) if a["name"].startswith("raypack")]
    return {
        "step": step,
        "driver MiB": rss(psutil.Process(driver)),
        "driver threads": psutil.Process(driver).num_threads(),
        "controller MiB": rss(controller) if controller else 0,
        "raylet MiB": rss(raylet),
        "worker MiB": rss(psutil.Process()),
        "worker threads": threading.active_count(),
        "processes": len(workers),
        "actors": len(named),
        "objects MiB": round((shared - ray.available_resources().get("object_store_memory", 0)) / 2**20, 1),
        "temp dirs": len(list(Path(tempfile.gettempdir()).glob("raypack-*"))),
    }


def rss(process):
    """Resident memory that is the process's own, MiB."""
    memory = process.memory_info()
    return round((memory.rss - memory.shared) / 2**20, 1)


def main():
    """Run, and print the first and the last attempts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10, help="steps of an attempt")
    parser.add_argument("--plain", action="store_true", help="the same without raypack")
    arguments = parser.parse_args()
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    total = (arguments.restarts + 1) * arguments.steps
    with tempfile.TemporaryDirectory() as place:
        rng = np.random.default_rng(0)
        lengths = np.clip(rng.lognormal(np.log(20), 0.8, 40 * total), 1, 128).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = pa.array(rng.integers(0, 1000, offsets[-1], np.int32))
        tokens = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), ids)
        source = write_source(f"{place}/source", [pa.table({"input_ids": tokens})])
        trainer = TorchTrainer(
            train_plain if arguments.plain else train,
            train_loop_config={
                "recipe": PackedData(source=source.path, maximum_tokens=128, batches_per_step=4),
                "place": place,
                "steps": arguments.steps,
                "total": total,
                "driver": os.getpid(),
            },
            scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(
                name="soak",
                storage_path=f"{place}/storage",
                failure_config=FailureConfig(max_failures=-1),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
                callbacks=[] if arguments.plain else [RaypackCallback()],
            ),
        )
        trainer.fit()
        audit = None if arguments.plain else raypack.verify(f"{place}/storage/soak")
        rows = [json.loads(line) for line in Path(place, "attempts.jsonl").read_text().splitlines()]
    steps = sum(a.steps for a in audit.attempts) if audit else total
    table = Table(title=f"{len(rows) - 1} restarts, {steps:,} steps{'' if audit else ', without raypack'}")
    table.add_column("attempt", justify="right")
    for name in rows[0]:
        table.add_column(name, justify="right")
    shown = sorted({0, 1, *range(10, len(rows), max(10, len(rows) // 10)), len(rows) - 1})
    for k in shown:
        table.add_row(str(k), *(f"{value:,}" for value in rows[k].values()))
    console = Console(width=180)
    console.print(table)
    if audit:
        console.print("audit:", audit.findings or audit.verdict)
    return int(audit is not None and not audit.consistent)


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(__import__(__name__))
    raise SystemExit(main())
