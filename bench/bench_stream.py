"""The stream inside a real two-rank Ray Train run, beside a null pipeline of the same shape.

    python bench/bench_stream.py [--seconds 5] [--windows 3]

Three ways to the train loop, one run each: raypack's stream through Ray Data, raypack's direct backend,
and a null pipeline: Ray Data blocks of the same rows and bytes that nobody planned, read or paced. The
loop takes each batch and commits each step; it does not compute. Then the loop stalls for a while.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import ray
import ray.train
from ray import cloudpickle
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from rich.console import Console
from rich.table import Table

from raypack.source import write_source
from raypack.train import PackedData, get_loader

BUDGET = 16_384
ROWS = 64
STALL_S = 6.0


def make_source(path: str, tokens: int) -> None:
    """Documents with a long tail: lognormal, median 400 tokens."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(400), 0.8, tokens // 550).astype(np.int64), 1, BUDGET)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(0, 50_000, offsets[-1], dtype=np.int32)
    write_source(path, [pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, ids)})])


def null_batches():
    """Blocks of the stream's own shape from one generator task, through the same iteration."""
    from ray.data.block import BlockMetadata
    from ray.data.collate_fn import ArrowBatchCollateFn
    from ray.data.datasource import Datasource, ReadTask

    class Null(Datasource):
        def estimate_inmemory_data_size(self):
            return None

        def get_read_tasks(self, parallelism, per_task_row_limit=None, data_context=None):
            def read():
                tokens = np.zeros(ROWS * BUDGET, np.int32)
                offsets = pa.array([0, len(tokens)], pa.int64())
                for _ in range(10**9):
                    yield pa.table({"t": pa.LargeListArray.from_arrays(offsets, pa.array(tokens.copy()))})

            nothing = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
            return [ReadTask(read, nothing)]

    class Collate(ArrowBatchCollateFn):
        def __call__(self, table):
            values = table.column("t").chunk(0).values.to_numpy()
            return [values[k * BUDGET : (k + 1) * BUDGET] for k in range(ROWS)]

    dataset = ray.data.read_datasource(Null(), override_num_blocks=1, concurrency=1, num_cpus=0.25)
    context = dataset.context
    context.execution_options.preserve_order = True
    context.execution_options.resource_limits = ray.data.ExecutionResources.for_limits(
        cpu=1, object_store_memory=64 << 20
    )
    context.target_max_block_size = 1
    context.enable_progress_bars = False
    for batches in dataset.iter_torch_batches(
        batch_size=None, collate_fn=Collate(), prefetch_batches=1, device="cpu"
    ):
        yield from batches


class Clock:
    """Tokens, wall time and CPU time of this process, by windows."""

    def __init__(self, config):
        self.config = config
        self.process = psutil.Process()
        self.began = time.perf_counter()
        self.first = None
        self.windows = []
        self.mark = None

    def tokens(self, count):
        """Count tokens; return True when all windows are full."""
        now = time.perf_counter()
        if self.first is None:
            self.first = now - self.began
        if self.mark is None:
            if now - self.began > self.first + 2:  # warm
                self.mark = (now, self.cpu(), 0)
            return False
        wall, cpu, sofar = self.mark
        sofar += count
        self.mark = (wall, cpu, sofar)
        if now - wall >= self.config["seconds"]:
            self.windows.append((sofar / (now - wall), (self.cpu() - cpu) / (now - wall)))
            self.mark = (now, self.cpu(), 0)
        return len(self.windows) == self.config["windows"]

    def cpu(self):
        times = self.process.cpu_times()
        return times.user + times.system

    def stall(self):
        """Do nothing for a while and return the share of a core that this process burns."""
        time.sleep(1.0)
        wall, cpu = time.perf_counter(), self.cpu()
        time.sleep(STALL_S)
        return (self.cpu() - cpu) / (time.perf_counter() - wall)


def loop(config):
    rank = ray.train.get_context().get_world_rank()
    result = {}
    if config["mode"] == "null":
        clock = Clock(config)
        for batch in null_batches():
            if clock.tokens(len(batch)):
                break
        result["stalled"] = clock.stall()
    else:
        with get_loader(config["recipe"]) as loader:
            clock = Clock(config)
            full, commits = False, []
            for step in loader:
                for batch in step:
                    full = clock.tokens(batch.num_tokens)
                began = time.perf_counter()
                step.commit()
                commits.append(time.perf_counter() - began)
                if full:
                    break
            result["stalled"] = clock.stall()
            result["commit_ms"] = 1e3 * statistics.median(commits)
            status = ray.get(loader._node_planner.status.remote(rank))
            result["ahead"] = status["granted"] - status["committed"]
    result.update(first=clock.first, windows=clock.windows)
    Path(config["out"], f"{config['mode']}-{rank}.json").write_text(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a window")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--paths", default="null,ray_data,direct", help="which of them, by commas")
    parser.add_argument("--tokens", type=int, default=100_000_000, help="tokens of the source")
    args = parser.parse_args()
    os.environ["RAY_TRAIN_METRICS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="raypack-bench-") as work:
        make_source(work + "/source", args.tokens)
        ray.init(num_cpus=4, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False)
        run_all(args, work)
        ray.shutdown()


def run_all(args, work: str) -> None:
    import bench_stream as this

    cloudpickle.register_pickle_by_value(this)
    table = Table(title=f"2 ranks, batches of {BUDGET:,} tokens, blocks of {ROWS} rows", title_justify="left")
    for heading in (
        "path",
        "M tokens/s",
        "spread",
        "first batch s",
        "ahead",
        "commit ms",
        "CPU running",
        "CPU stalled",
    ):
        table.add_column(heading, justify="right")
    for mode in args.paths.split(","):
        backend = "ray_data" if mode == "null" else mode
        recipe = PackedData(
            source=work + "/source", maximum_tokens=BUDGET, batches_per_step=4, epochs=1000, backend=backend
        )
        config = {
            "mode": mode,
            "recipe": recipe,
            "out": work,
            "seconds": args.seconds,
            "windows": args.windows,
        }
        DataParallelTrainer(
            this.loop,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(name=f"bench-{mode}", storage_path=work + "/runs"),
        ).fit()
        table.add_row(mode, *row([json.loads(Path(work, f"{mode}-{r}.json").read_text()) for r in (0, 1)]))
    Console(width=130).print(table)


def row(ranks) -> list[str]:
    speeds = [sum(w[0] for w in window) / 1e6 for window in zip(*(r["windows"] for r in ranks), strict=True)]
    running = [w[1] for r in ranks for w in r["windows"]]
    return [
        f"{statistics.median(speeds):.1f}",
        f"{min(speeds):.1f}-{max(speeds):.1f}",
        f"{max(r['first'] for r in ranks):.2f}",
        " ".join(str(r.get("ahead", "-")) for r in ranks),
        f"{max(r['commit_ms'] for r in ranks):.2f}" if "commit_ms" in ranks[0] else "-",
        f"{statistics.median(running):.0%}",
        f"{max(r['stalled'] for r in ranks):.1%}",
    ]


if __name__ == "__main__":
    main()
