"""What only a GPU can show, in one run of twelve minutes at the most; at tiny sizes on a CPU.

    python bench/gpu.py [--parts masks model] [--tiny] [--json gpu.json]

Each part runs in a process of its own under a time limit: one that fails, hangs or breaks the device is
reported, and the others go on. Exit code 1 where a part failed. What needs CUDA says so and is skipped.

    masks      dense masks against `fill_` of the same tensor, S up to 65,536; sampled rows compared
    isolation  `assert_isolated` of each attention exporter on a tiny Qwen3; torch varlen, compiled Flex
    transfer   whether the next batch's copies overlap the present batch's kernels, in a profiler's trace
    wait       what a train loop waits for its data at a step of 20 ms, through Ray Data
    model      a Qwen3-shaped model: tokens/s, the same documents packed and padded
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from rich.console import Console
from rich.table import Table

PARTS = {
    "masks": ("gpu_kernels", 120),
    "isolation": ("gpu_kernels", 150),
    "transfer": ("gpu_kernels", 60),
    "wait": ("gpu_training", 120),
    "model": ("gpu_training", 240),
}
"""Where a part is, and the seconds that it may take: 690 together, and the rest for starts."""
START_S = 5


def run_part(name: str, tiny: bool, path: Path) -> int:
    """Write a part's rows as they come, one JSON line each, and why it failed as the last of them."""
    part = getattr(importlib.import_module(PARTS[name][0]), name)
    with path.open("w") as file:
        try:
            for row in part(tiny):
                print(json.dumps(row), file=file, flush=True)
        except Exception:  # told in the report, and by the exit code
            print(json.dumps({"failed": traceback.format_exc()}), file=file, flush=True)
            return 1
    return 0


def run_apart(name: str, tiny: bool, path: Path, limit_s: float) -> dict:
    """Run a part in a process of its own and return what is to be reported of it."""
    path.touch()
    command = [sys.executable, __file__, "--parts", name, "--rows", str(path), *["--tiny"] * tiny]
    began, failed = time.monotonic(), None
    threads = {"OMP_NUM_THREADS": "1"} if tiny else {}
    try:
        code = subprocess.run(command, env={**os.environ, **threads}, timeout=limit_s, check=False).returncode
    except subprocess.TimeoutExpired:
        code, failed = 1, f"not done after {limit_s:.0f} s"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if rows and "failed" in rows[-1]:
        failed = rows.pop()["failed"]
    elif code and failed is None:
        failed = f"its process ended with exit code {code}"
    return {"seconds": round(time.monotonic() - began, 1), "failed": failed, "rows": rows}


def table_of(name: str, part: dict) -> Table:
    """Return a part's rows as a table, a column for each key."""
    table = Table(title=f"{name}: {part['seconds']} s", title_justify="left")
    keys = dict.fromkeys(key for row in part["rows"] for key in row)
    for key in keys:
        table.add_column(key, justify="left" if key in ("case", "skipped") else "right")
    for row in part["rows"]:
        table.add_row(*(str(row.get(key, "-")) for key in keys))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tiny", action="store_true", help="tiny sizes; always so on a CPU")
    parser.add_argument("--json", type=Path, help="where the report goes as JSON too")
    parser.add_argument("--minutes", type=float, default=12.0, help="for all parts together")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # this process is one part's
    options = parser.parse_args()
    if options.rows:
        return run_part(options.parts[0], options.tiny, options.rows)
    deadline = time.monotonic() + 60 * options.minutes
    console, report = Console(width=140), {}
    with tempfile.TemporaryDirectory(prefix="raypack-gpu-") as work:
        for name in options.parts:
            limit = min(PARTS[name][1], deadline - time.monotonic() - START_S)
            if limit <= 0:
                report[name] = {
                    "seconds": 0.0,
                    "failed": f"no time left of {options.minutes:g} minutes",
                    "rows": [],
                }
            else:
                report[name] = run_apart(name, options.tiny, Path(work, name), limit)
            if report[name]["rows"]:
                console.print(table_of(name, report[name]))
            if report[name]["failed"]:
                console.print(f"{name} FAILED: {report[name]['failed']}", style="red", markup=False)
            if options.json:  # after each part: a machine may be taken away
                options.json.write_text(json.dumps(report, indent=1))
    failed = [name for name, part in report.items() if part["failed"]]
    console.print(
        f"{len(report) - len(failed)} of {len(report)} parts done"
        + f"; failed: {', '.join(failed)}" * bool(failed)
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
