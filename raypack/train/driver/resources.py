"""Refuses what a cluster can never hold, before Ray waits for it indefinitely."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import ray

from raypack.data.stream.datasource import READER_CPUS
from raypack.errors import ResourceError, StreamError
from raypack.train.driver.need import Cluster, Need, units_of

if TYPE_CHECKING:
    from raypack.train.elastic.worker_context import WorkerContext
    from raypack.train.recipe import PackedData

logger = logging.getLogger(__name__)

_ENDING = "Ctrl-C three times ends it"


def check_resources(need: Need, *, ends: bool = True) -> None:
    """Refuse a run that the cluster can never hold, and warn where it must wait.

    Args:
        need: What the run asks for.
        ends: Whether what never fits is an error; else it is logged as one: a run that has been under way
            may wait for a node to come back.

    Raises:
        ResourceError: The cluster can never hold the run, and nothing adds nodes to it.
    """
    if not need.most:  # local mode: in the driver's own process
        return
    cluster = Cluster.current()
    fault = need.fault(cluster)
    if fault is None:
        _warn_of_others(need)
    elif cluster.grows:
        logger.warning("the run waits until the autoscaler adds nodes (%s): %s", _ENDING, fault)
    elif ends:
        raise ResourceError(fault)
    else:
        logger.error("the run waits for nodes to come back (%s): %s", _ENDING, fault)


def check_readers(recipe: PackedData, worker: WorkerContext) -> None:
    """Refuse to open a loader whose readers can get no CPU beside the workers that run already.

    Raises:
        StreamError: The workers reserve what the readers need, and nothing adds nodes to the cluster.
    """
    if recipe.backend != "ray_data":
        return
    cluster = Cluster.current()
    if units_of(cluster.cpus) - units_of(worker.worker_cpus) >= worker.world_size * units_of(READER_CPUS):
        return
    fault = f"rank {worker.rank}'s reader can get no CPU: {reader_numbers(worker, cluster)}"
    if not cluster.grows:
        raise StreamError(fault)
    if worker.rank == 0:
        logger.warning("the run waits until the autoscaler adds nodes: %s", fault)


def reader_numbers(worker: WorkerContext, cluster: Cluster) -> str:
    """Say how many CPUs there are, who reserves them, and how readers get some."""
    return (
        f"readers need {READER_CPUS:g} CPU on each rank's behalf, the cluster has {cluster}, and the "
        f"{worker.world_size} train workers reserve {worker.worker_cpus:g}. Leave CPUs for Ray Data "
        "(ScalingConfig(resources_per_worker={'CPU': 0, 'GPU': 1}); without GPUs {'CPU': 0.5}, say), or use "
        "backend='direct', which needs none"
    )


def _warn_of_others(need: Need) -> None:
    """Warn where the cluster would hold the run, but others hold what it needs now."""
    free = ray.available_resources()
    for name, amount in need.worker.items():
        wanted = need.least * (amount + need.reader_cpus * (name == "CPU"))
        if units_of(wanted) > units_of(free.get(name, 0.0)):
            logger.warning(
                "the run waits for others to end (%s): it needs %g %s, and %g are free",
                _ENDING,
                wanted,
                name,
                free.get(name, 0.0),
            )
