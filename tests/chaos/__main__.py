"""Run seeds of chaos and print what came of them.

python -m tests.chaos --seeds 1-20 [--nodes 2]
"""

import argparse
import os
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

os.environ.setdefault("RAY_TRAIN_METRICS_ENABLED", "0")
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")


def main():
    """Run the seeds one after another."""
    from tests.chaos.plan import plan_of
    from tests.chaos.run import Nodes, run_plan
    from tests.chaos.test_chaos import STEPS

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", default="1-20", help="a seed, or first-last")
    parser.add_argument("--nodes", type=int, default=2, help="nodes beside the head, which may be lost")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    table = Table(title="chaos")
    for heading in ("seed", "deal", "backend", "kills", "worlds in the lineage", "steps lost", "s", "proof"):
        table.add_column(heading)
    failed = False
    for seed in range(int(first), int(last or first) + 1):
        plan = plan_of(seed, steps=STEPS, nodes=bool(arguments.nodes))
        nodes = Nodes(arguments.nodes)
        try:
            with tempfile.TemporaryDirectory() as place:
                outcome = run_plan(plan, Path(place), nodes)
        finally:
            nodes.close()
        failed |= bool(outcome.findings)
        row = (
            str(seed),
            plan.deal,
            plan.backend,
            ", ".join(outcome.kills),
            " ".join(map(str, outcome.worlds)),
            str(outcome.lost),
            f"{outcome.seconds:.0f}",
            "; ".join(outcome.findings) or "all once, equal to 1e-9",
        )
        table.add_row(*row)
        print(*row, sep=" | ", flush=True)
    Console(width=200).print(table)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
