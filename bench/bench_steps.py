"""Optimizer steps: how fast windows are packed, how full batches are, how even ranks are.

    python bench/bench_steps.py [--examples 1000000]

Lengths come from named distributions with a fixed seed, and from the standard library's own sources
(tokens of Python's tokenizer, one document a file, cut at the budget).
"""

from __future__ import annotations

import argparse
import statistics
import sysconfig
import time
import tokenize
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from raypack.batching import LengthTable, StepPlanner, TokenBatchOptions
from raypack.batching.best_fit import best_fit_bins

REPEATS = 3
STEPS = 25


def lognormal(rng, count, budget):
    return np.clip(rng.lognormal(np.log(400), 0.8, count), 1, budget)


MIXES = {
    "lognormal, median 400": lognormal,
    "uniform 1 to budget": lambda rng, count, budget: rng.integers(1, budget + 1, count),
    "gamma, mean 600": lambda rng, count, budget: np.clip(rng.gamma(2, 300, count), 1, budget),
    "normal (2500, 900)": lambda rng, count, budget: np.clip(rng.normal(2500, 900, count), 1, budget),
}


def lengths_of(name, count, budget):
    return MIXES[name](np.random.default_rng(0), count, budget).astype(np.int32)


def library_lengths(budget):
    """Tokens of the standard library's files, those over the budget cut into pieces."""
    lengths = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        with open(path, "rb") as file:
            tokens = sum(1 for _ in tokenize.tokenize(file.readline))
        lengths += [budget] * (tokens // budget) + [tokens % budget] * bool(tokens % budget)
    return np.array(lengths, np.int32)


def planner(lengths, budget, size=64, **more):
    return StepPlanner("s", lengths, TokenBatchOptions(budget), batches_per_step=size, seed=1, **more)


def plan_all(one):
    """Plan an epoch step by step; return steps."""
    steps = []
    while planned := one.steps(0, 16):
        steps += planned
        one.commit_to(planned[-1].end)
    return steps


def fill_of(steps, budget):
    return sum(s.real_tokens for s in steps) / (budget * sum(len(s.batches) for s in steps))


def bound_of(lengths, budget):
    """The fill that no packing can pass: by tokens, and by examples of which no two fit together."""
    fewest = max(-(-int(lengths.sum(dtype=np.int64)) // budget), int((lengths > budget // 2).sum()))
    return lengths.sum(dtype=np.int64) / (budget * fewest)


def speed_table(count):
    table = Table(title=f"planning an epoch of {count:,} examples, lognormal, median 400, in CPU time")
    for heading in ("packing", "budget", "window", "M examples/s", "spread", "bins alone"):
        table.add_column(heading, justify="right")
    for budget in (4096, 16_384, 131_072):
        lengths = LengthTable.of(lengths_of("lognormal, median 400", count, budget))
        for packing in ("best_fit", "greedy"):
            times = []
            plan_all(planner(lengths, budget, packing=packing))  # compiles
            for _ in range(REPEATS):
                one = planner(lengths, budget, packing=packing)
                began = time.process_time()
                plan_all(one)
                times.append(time.process_time() - began)
            rates = sorted(count / t / 1e6 for t in times)
            alone = "-"
            if packing == "best_fit":
                part = lengths.array[: min(one.window, count)]
                began = time.process_time()
                best_fit_bins(part, TokenBatchOptions(budget))
                alone = f"{len(part) / (time.process_time() - began) / 1e6:.1f}"
            window = f"{one.window:,}" if one.window else "-"
            spread = f"{rates[0]:.2f}-{rates[-1]:.2f}"
            table.add_row(packing, f"{budget:,}", window, f"{statistics.median(rates):.2f}", spread, alone)
    return table


def fill_table(count):
    table = Table(title="how full batches are: tokens over budgets, an epoch")
    for heading in (
        "lengths",
        "budget",
        "examples",
        "best fit",
        "greedy",
        "bound",
        "padded best fit",
        "greedy",
    ):
        table.add_column(heading, justify="right")
    for budget in (4096, 16_384):
        mixes = {name: lengths_of(name, count, budget) for name in MIXES}
        mixes["standard library"] = library_lengths(budget)
        for name, lengths in mixes.items():
            row = [name, f"{budget:,}", f"{len(lengths):,}"]
            for layout in ("packed", "padded"):
                options = TokenBatchOptions(budget, None, layout)
                for packing in ("best_fit", "greedy"):
                    one = StepPlanner("s", lengths, options, batches_per_step=64, seed=1, packing=packing)
                    row.append(f"{fill_of(plan_all(one), budget):.2%}")
                if layout == "packed":
                    row.append(f"{bound_of(lengths, budget):.2%}")
            table.add_row(*row)
    return table


def balance_table(count):
    table = Table(title="attention cost over ranks: greatest over mean, a step")
    headings = (
        "budget",
        "packing",
        "ranks",
        "batches a rank",
        "steps",
        "mean",
        "p95",
        "greatest",
        "bound",
        "ms",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for budget in (4096, 16_384):
        lengths = lengths_of("lognormal, median 400", count, budget)
        for packing in ("best_fit", "greedy"):
            for ranks, each in ((8, 8), (64, 8), (1024, 8)):
                steps = plan_all(planner(lengths, budget, ranks * each, packing=packing))[:-1][:100]
                if steps:
                    table.add_row(
                        f"{budget:,}", packing, f"{ranks:,}", str(each), *_balance(steps, ranks, each)
                    )
    return table


def _balance(steps, ranks, each):
    ratios, bounds, times = [], [], []
    for step in steps:
        cost = dict(zip(map(id, step.batches), step.costs(), strict=True))
        began = time.perf_counter()
        dealt = step.deal(ranks)
        times.append(time.perf_counter() - began)
        loads = [sum(cost[id(batch)] for batch in rank) for rank in dealt]
        ordered, mean = sorted(cost.values()), statistics.mean(loads)
        ratios.append(max(loads) / mean)
        bounds.append(max(1, (ordered[-1] + sum(ordered[: each - 1])) / mean))
    return (
        str(len(steps)),
        f"{statistics.mean(ratios):.4f}",
        f"{np.quantile(ratios, 0.95):.4f}",
        f"{max(ratios):.4f}",
        f"{max(bounds):.4f}",
        f"{1e3 * statistics.median(times):.1f}",
    )


def waiting_table():
    """How long a step of 1,024 ranks takes to plan, and what the end of a window adds."""
    table = Table(title="the wait for a step's plan, with 100 ms of training between two steps")
    for heading in (
        "batches a step",
        "budget",
        "steps",
        "median ms",
        "greatest ms",
        "window planned alone ms",
    ):
        table.add_column(heading, justify="right")
    for size, budget in ((64, 4096), (256, 131_072), (8192, 4096)):
        lengths = LengthTable.of(lengths_of("lognormal, median 400", 2_000_000, budget))
        one = planner(lengths, budget, size)
        began = time.perf_counter()
        one.steps(0, 1)
        first = time.perf_counter() - began
        waits = []
        for _ in range(STEPS):
            time.sleep(0.1)
            began = time.perf_counter()
            steps = one.steps(0, 1)
            one.commit_to(steps[-1].end)
            waits.append(time.perf_counter() - began)
        table.add_row(
            f"{size:,}",
            f"{budget:,}",
            str(STEPS),
            f"{1e3 * statistics.median(waits):.1f}",
            f"{1e3 * max(waits):.1f}",
            f"{1e3 * first:.1f}",
        )
    return table


def count_table(count):
    table = Table(title=f"counting the batches of an epoch of {count:,} examples")
    for heading in ("packing", "budget", "M examples/s"):
        table.add_column(heading, justify="right")
    for budget in (4096, 16_384):
        lengths = LengthTable.of(lengths_of("lognormal, median 400", count, budget))
        for packing in ("best_fit", "greedy"):
            one = planner(lengths, budget, packing=packing)
            began = time.perf_counter()
            one.remaining_batches()
            table.add_row(packing, f"{budget:,}", f"{count / (time.perf_counter() - began) / 1e6:.1f}")
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--examples", type=int, default=1_000_000, help="examples of an epoch")
    count = parser.parse_args().examples
    console = Console(width=140)
    for table in (speed_table(count), fill_table(count // 4), balance_table(count), waiting_table()):
        console.print(table)
    console.print(count_table(count))


if __name__ == "__main__":
    main()
