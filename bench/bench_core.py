"""The numpy core: order, greedy planning, global steps, and what a restart and a record cost at 10^9 rows.

    python bench/bench_core.py [--rows 1000000000] [--greedy]

The rows' table is written to a temporary file of 4 bytes a row and read through a memory map. Rates a
core are in CPU time, restarts and first calls in wall time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from raypack.batching import (
    ConsolidatedTokenBatchState,
    LengthTable,
    StatefulTokenBatchSampler,
    StepPlanner,
    TokenBatchOptions,
)
from raypack.batching.greedy import greedy_ends
from raypack.batching.steps.state import StepPlannerState
from raypack.batching.steps.step import StepCursor
from raypack.sampling import EpochOrder, StatefulShardSampler

REPEATS = 5
WORLD = 1024
STEPS = 100_000


def timed(work, repeats=REPEATS, clock=time.perf_counter):
    """Return the median, least and greatest time of some runs, seconds."""
    times = []
    for _ in range(repeats):
        began = clock()
        work()
        times.append(clock() - began)
    return statistics.median(times), min(times), max(times)


def plain_greedy(lengths, budget, limit):
    """The greedy rule, budget and number of examples, as a plain loop over a list."""
    ends, total, count = [], 0, 0
    for k, length in enumerate(lengths):
        if total + length > budget or count == limit:
            ends.append(k)
            total = count = 0
        total += length
        count += 1
    ends.append(len(lengths))
    return ends


def plain_padded(lengths, budget, limit):
    """The same for rows of the longest example's length."""
    ends, longest, count = [], 0, 0
    for k, length in enumerate(lengths):
        grown = length if length > longest else longest  # faster than max()
        if (count + 1) * grown > budget or count == limit:
            ends.append(k)
            count, grown = 0, length
        longest = grown
        count += 1
    ends.append(len(lengths))
    return ends


def lognormal(count, median, seed=0):
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(median), 0.8, count).astype(np.int32), 1, 4096)


def order_rows(table):
    positions = np.random.default_rng(0).integers(0, 10**9, 4_000_000)
    for shuffle in ("full", "block"):
        order = EpochOrder(10**9, seed=1, epoch=0, shuffle=shuffle)
        for what, work in (
            ("in sequence", lambda o=order: o.slice(10**8, 10**8 + 4_000_000)),
            ("at random", lambda o=order: o.at(positions)),
        ):
            work()
            median, low, high = timed(work, clock=time.process_time)
            table.add_row(
                f"order {shuffle}, N = 10^9, {what}",
                f"{4 / median:.0f} M positions/s",
                f"{4 / high:.0f}-{4 / low:.0f}",
            )


def greedy_rows(table):
    """One ratio for each regime: planning and the loop take turns, so that both see the same machine."""
    for layout, median_length, (budget, limit) in product(
        ("packed", "padded"),
        (400, 75, 25),
        ((4096, None), (4096, 4), (4096, 32), (16384, None), (16384, 4), (16384, 32), (1_000_000, None)),
    ):
        options = TokenBatchOptions(budget, limit, layout)
        plain_way = plain_greedy if layout == "packed" else plain_padded
        lengths = lognormal(1_000_000, median_length)
        as_list = lengths.tolist()
        expected = plain_way(as_list, budget, limit)
        assert greedy_ends(lengths, options).tolist() == expected
        ratios, rates = [], []
        for _ in range(REPEATS):
            plain, _, _ = timed(partial(plain_way, as_list, budget, limit), 1, time.process_time)
            ours, _, _ = timed(partial(greedy_ends, lengths, options), 1, time.process_time)
            ratios.append(plain / ours)
            rates.append(len(lengths) / ours / 1e6)
        most = f", at most {limit}" if limit else ""
        size = len(lengths) / len(expected)
        table.add_row(
            f"greedy {layout}, budget {budget:,}, mean {lengths.mean():.0f}{most}: {size:,.1f} a batch",
            f"{statistics.median(rates):.0f} M/s, {statistics.median(ratios):.1f}x a plain loop",
            f"{min(ratios):.1f}-{max(ratios):.1f}",
        )


FIRST_CALL = """
import time
wall, cpu = time.perf_counter(), time.process_time()
from raypack.batching import TokenBatchOptions
from raypack.batching.warm import warm_planning, warm_receipts
for packing in ("best_fit", "greedy"):
    for layout in ("packed", "padded"):
        for shuffle in ("full", "block"):
            warm_planning(TokenBatchOptions(64, None, layout), packing=packing, shuffle=shuffle)
warm_receipts()
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def first_call_rows(table, folder):
    """What all kernels cost a fresh process: compiled, and loaded from the disk."""
    for what in ("compiled", "loaded from the disk"):
        walls, cpus = [], []
        for _ in range(REPEATS if what != "compiled" else 1):
            environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "numba")}
            command = [sys.executable, "-c", FIRST_CALL]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            wall, cpu = map(float, done.stdout.split())
            walls.append(wall)
            cpus.append(cpu)
        table.add_row(
            f"all kernels in a fresh process, {what}, imports included",
            f"{statistics.median(walls):.1f} s, {statistics.median(cpus):.1f} s of CPU",
            f"{min(walls):.1f}-{max(walls):.1f}",
        )


def step_rows(table):
    lengths = LengthTable(lognormal(2_000_000, 400))
    options = TokenBatchOptions(4096)
    planner = StepPlanner("bench", lengths, options, batches_per_step=8 * WORLD, seed=0)
    times, spread = [], []
    for _ in range(REPEATS):
        began = time.perf_counter()
        (step,) = planner.steps(0, 1)
        ranks = step.deal(WORLD)
        times.append(time.perf_counter() - began)
        costs = dict(zip(map(id, step.batches), step.costs(), strict=True))
        loads = [sum(costs.get(id(plan), 0) for plan in rank) for rank in ranks]
        spread.append(max(loads) / (sum(loads) / len(loads)))
        planner.commit(1)
    table.add_row(
        f"one global step of 8 x {WORLD:,} batches, planned and dealt",
        f"{1e3 * statistics.median(times):.0f} ms",
        f"{1e3 * min(times):.0f}-{1e3 * max(times):.0f}",
    )
    table.add_row("its max/mean cost over ranks", f"{statistics.median(spread):.3f}", "")


def billion_rows(table, rows, folder):
    path = folder / "lengths.i32"
    piece = lognormal(1_000_000, 400)
    with open(path, "wb") as file:
        for _ in range(rows // len(piece)):
            file.write(piece.tobytes())
        file.flush()
        os.fsync(file.fileno())  # only clean pages can be dropped
    count = rows // len(piece) * len(piece)
    known = {
        "minimum": int(piece.min()),
        "minimum_index": int(piece.argmin()),
        "maximum": int(piece.max()),
        "maximum_index": int(piece.argmax()),
    }
    options = TokenBatchOptions(4096)

    def lengths():
        return LengthTable(np.memmap(path, np.int32, "r"), "known", **known)

    planner = StepPlanner("bench", lengths(), options, batches_per_step=64, seed=0)
    window = planner.state().window
    planner.commit_to(StepCursor(10**6, count // 100 * 99 // window * window, 0))
    record = json.dumps(planner.state().to_dict())
    del planner

    def restart():
        state = StepPlannerState.from_dict(json.loads(record))
        StepPlanner.from_state(state, lengths(), options).steps(0, 1)

    median, low, high = timed(restart)
    table.add_row(
        f"global deal, {count:,} rows, 99 %: restore and first plan",
        f"{1e3 * median:.0f} ms",
        f"{1e3 * low:.0f}-{1e3 * high:.0f}",
    )
    cold = []
    for _ in range(REPEATS):
        for thread in threading.enumerate():
            if thread.name == "raypack-plan":
                thread.join()
        gc.collect()  # pages that are mapped stay in the cache
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        cold.append(timed(restart, 1)[0])
    table.add_row(
        "the same, the file not in the page cache",
        f"{1e3 * statistics.median(cold):.0f} ms",
        f"{1e3 * min(cold):.0f}-{1e3 * max(cold):.0f}",
    )
    table.add_row("its record", f"{len(record):,} bytes", "")
    return lengths(), options, count


def rank_records(table, lengths, options, count):
    """Ranks that commit whole batches for 100,000 steps drift apart by the batches' numbers of examples."""
    sizes = np.diff(greedy_ends(lognormal(1_000_000, 400), options))
    rng = np.random.default_rng(0)
    share = count // WORLD
    steps = min(STEPS, int(0.9 * share / sizes.mean()))
    drift = rng.normal(steps * sizes.mean(), sizes.std() * np.sqrt(steps), WORLD).astype(np.int64)
    states = []
    for rank in range(WORLD):
        shard = StatefulShardSampler("bench", count, seed=0, rank=rank, world_size=WORLD)
        sampler = StatefulTokenBatchSampler(shard, lengths, options)
        shard.next_indices(int(drift[rank]))
        sampler.commit(int(drift[rank]))
        states.append(sampler.state())
    began = time.perf_counter()
    merged = ConsolidatedTokenBatchState.consolidate(states)
    seconds = time.perf_counter() - began
    after = StatefulTokenBatchSampler.reshard(merged, 3, 1000, lengths).state()
    name = f"rank deal, {count:,} rows, {WORLD:,} ranks, {steps:,} steps"
    table.add_row(f"{name}: consolidated record", f"{len(json.dumps(merged.to_dict())):,} bytes", "")
    table.add_row("consolidating", f"{1e3 * seconds:.0f} ms", "")
    table.add_row("a rank's record after the reshard", f"{len(json.dumps(after.to_dict())):,} bytes", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--greedy", action="store_true", help="only greedy planning against a plain loop")
    args = parser.parse_args()
    table = Table(title="numpy core, one core", title_justify="left")
    for heading in ("what", "median", "spread"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    greedy_rows(table)
    if args.greedy:
        Console(width=130).print(table)
        return
    order_rows(table)
    step_rows(table)
    with tempfile.TemporaryDirectory(prefix="raypack-bench-") as work:
        first_call_rows(table, Path(work))
        lengths, options, count = billion_rows(table, args.rows, Path(work))
        rank_records(table, lengths, options, count)
        del lengths
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
