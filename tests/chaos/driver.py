"""The driver of a chaotic run, a process of its own that may be killed too.

python -m tests.chaos.driver PLACE ADDRESS
"""

import json
import sys
from pathlib import Path

import ray
from ray import cloudpickle
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from raypack.train import PackedData, RaypackCallback
from tests.chaos import functions
from tests.chaos.plan import IN_WORKER, WORLDS
from tests.support import train_functions as shared

RUN = "chaos"


def recipe_of(plan, source):
    """The recipe of a plan."""
    return PackedData(
        source=source,
        maximum_tokens=64,
        batches_per_step=7,
        seed=plan["seed"],
        epochs=2,
        deal=plan["deal"],
        backend=plan["backend"],
        ahead=12,
    )


def main(place, address):
    """Go through the phases that are not done yet."""
    plan = json.loads((place / "plan.json").read_text())
    for module in (functions, shared):
        cloudpickle.register_pickle_by_value(module)
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    (place / "driver-ready").touch()
    for phase, (world, stop) in enumerate(zip(WORLDS, [*plan["stops"], None], strict=True)):
        done = place / f"phase-{phase}-done"
        if done.exists():
            continue
        trainer = TorchTrainer(
            functions.train,
            train_loop_config={
                "place": str(place),
                "recipe": recipe_of(plan, str(place / "source")),
                "kills": [kill for kill in plan["kills"] if kill["kind"] in IN_WORKER],
                "stop_after": stop,
            },
            scaling_config=ScalingConfig(num_workers=world, resources_per_worker={"CPU": 0.25}),
            run_config=RunConfig(
                name=RUN,
                storage_path=str(place / "storage"),
                failure_config=FailureConfig(max_failures=20),
                callbacks=[RaypackCallback()],
                worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
            ),
        )
        trainer.fit()
        done.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
