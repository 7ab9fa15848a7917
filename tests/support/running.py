"""How the tests start a Ray Train run."""

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from raypack.train import PackedData, RaypackCallback
from tests.support.session_logs import SessionLogs

CPUS = 8
BUDGET, BATCHES = 64, 7
KILLED = (
    r"Connection (closed|reset) by peer|A worker health check failed|actor died unexpectedly",
    r"Graceful shutdown of backend failed|\[Rank \d+ Error Snippet\]",
)
"""What Ray Train logs of a worker that was killed, and of its peers."""


def fit(
    function,
    place,
    recipe,
    workers,
    *,
    name,
    failures=0,
    cpus=0.5,
    env=None,
    trainer=None,
    run=None,
    scaling=None,
    expected=(),
    **more,
):
    """Run a train function to its end.

    What is suspect in the run's logs and matches none of ``expected`` fails the test; where failures are
    allowed, workers are killed. None searches nothing, for runs whose storage fails on purpose.
    """
    logs = SessionLogs()
    one = TorchTrainer(
        function,
        **(trainer or {}),
        train_loop_config={"recipe": recipe, "scratch": str(place), **more},
        scaling_config=ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": cpus}, **(scaling or {})
        ),
        run_config=RunConfig(
            name=name,
            failure_config=FailureConfig(max_failures=failures),
            worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", **(env or {})}},
            **{"storage_path": str(place / "storage"), "callbacks": [RaypackCallback()], **(run or {})},
        ),
    )
    result = one.fit()
    if expected is not None:
        logs.check((*expected, *(KILLED if failures else ())))
    return result


def recipe_of(source, **more):
    return PackedData(
        **{"source": source.path, "maximum_tokens": BUDGET, "batches_per_step": BATCHES, "seed": 3, **more}
    )
