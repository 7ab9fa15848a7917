"""The context of a train worker: its rank, its peers, its node. Only this file reads them from Ray Train."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import ray
import ray.train

from raypack.errors import LoaderError
from raypack.guards import degrade

logger = logging.getLogger(__name__)

_local_groups: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""A name for each start in local mode, where there is no placement group."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The coordinates of one train worker in one attempt."""

    rank: int
    """Number of this process among all; its data rank too, where it shares its data with no other."""
    world_size: int
    """Processes."""
    local_world_size: int
    """Processes on this node."""
    node_id: str
    node_address: str
    run_name: str
    group: str
    """The same on all workers of the attempt, and another one in every attempt."""
    max_world_size: int
    """The most workers that the run may ever have."""
    worker_cpus: float
    """CPUs that all train workers of the attempt reserve together."""
    local: bool = False
    """Whether the train function runs in the driver's process; see `raypack.train.driver.local_mode`."""
    data_ranks: tuple[int, ...] | None = None
    """The data rank of each process; None where each has its own number. See `data_ranks_of`."""

    @property
    def data_rank(self) -> int:
        """Which part of the data this process trains; tensor- and pipeline-parallel peers share it."""
        return self.rank if self.data_ranks is None else self.data_ranks[self.rank]

    @property
    def data_world_size(self) -> int:
        """Data ranks."""
        return self.world_size if self.data_ranks is None else max(self.data_ranks) + 1

    @property
    def largest_data_world(self) -> int:
        """The most data ranks that the run may ever have, each of as many processes as now."""
        return max(1, self.max_world_size * self.data_world_size // self.world_size)

    @property
    def first_peers(self) -> list[int]:
        """The first process of each data rank."""
        if self.data_ranks is None:
            return [*range(self.world_size)]
        return [self.data_ranks.index(data_rank) for data_rank in range(self.data_world_size)]

    @property
    def is_first_peer(self) -> bool:
        """Whether this process reports for its data rank: what peers share is reported by one of them."""
        return self.data_ranks is None or self.data_ranks.index(self.data_rank) == self.rank

    @classmethod
    def current(cls) -> WorkerContext:
        """Return this worker's place.

        Raises:
            LoaderError: The caller is no Ray Train worker, or one of several processes in local mode.
        """
        local = _local_context()
        if local is not None:
            return cls._of_local_mode(local)
        group = ray.util.get_current_placement_group() if ray.is_initialized() else None
        if group is None:
            raise LoaderError(
                "get_loader must be called in the train function of a Ray Train trainer, got a process "
                "outside of one"
            )
        context = ray.train.get_context()
        world_size = context.get_world_size()
        return cls(
            rank=context.get_world_rank(),
            world_size=world_size,
            local_world_size=context.get_local_world_size(),
            node_id=ray.get_runtime_context().get_node_id(),
            node_address=ray.util.get_node_ip_address(),
            run_name=context.get_experiment_name(),
            group=group.id.hex(),
            max_world_size=_max_world_size(world_size),
            worker_cpus=sum(bundle.get("CPU", 0.0) for bundle in group.bundle_specs),
        )

    @classmethod
    def _of_local_mode(cls, context: Any) -> WorkerContext:
        """Return the place of a train function that runs in the driver (``num_workers=0``).

        Planner and rendezvous are actors all the same, so a Ray is started in this process's name where
        there is none.
        """
        if context.get_world_size() > 1:
            raise LoaderError(
                f"local mode must have one process, got {context.get_world_size()}: use "
                "ScalingConfig(num_workers=...), which starts them all"
            )
        if not ray.is_initialized():
            ray.init(include_dashboard=False)
        return cls(
            rank=0,
            world_size=1,
            local_world_size=1,
            node_id=ray.get_runtime_context().get_node_id(),
            node_address=ray.util.get_node_ip_address(),
            run_name=context.get_experiment_name(),
            group=_local_groups.setdefault(context, f"local-{uuid.uuid4().hex}"),
            max_world_size=1,
            worker_cpus=0.0,
            local=True,
        )

    def actor_name(self, what: str, loader: str) -> str:
        """Return the name of an actor of this attempt."""
        return f"raypack:{self.run_name}:{self.group}:{loader}:{what}"


def _local_context() -> Any:
    """Return Ray Train's context where it is in local mode, else None."""
    try:
        from ray.train.v2.api.context import LocalTrainContext

        context = ray.train.get_context()
    except RuntimeError:  # no train function runs here
        return None
    except ImportError as error:
        degrade(logger, "cannot tell whether Ray Train is in local mode, taken for no: %s", error)
        return None
    return context if isinstance(context, LocalTrainContext) else None


def _max_world_size(world_size: int) -> int:
    """Return the upper end of an elastic range of workers.

    Ray Train tells it to its own code alone; where that moves, the present size is taken.
    """
    try:
        from ray.train.v2._internal.execution.context import get_train_context

        workers: Any = get_train_context().train_run_context.scaling_config.num_workers
    except (ImportError, AttributeError) as error:
        degrade(logger, "cannot read the elastic range of workers, taking %d: %s", world_size, error)
        return world_size
    return int(workers[1] if isinstance(workers, (tuple, list)) else workers)
