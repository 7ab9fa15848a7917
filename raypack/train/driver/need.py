"""Resources of a run's workers and readers, and whether the cluster can ever provide them.

A reader runs on its rank's node where it can and on any other where it cannot, so the CPUs that all
workers leave are what counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ray
from ray.experimental.internal_kv import _internal_kv_get

from raypack.data.stream.datasource import READER_CPUS

if TYPE_CHECKING:
    from raypack.train.recipe import PackedData

_UNITS = 10_000  # Ray counts resources in these parts
_NODE_GROUP = "ray.io/node-group"
_AUTOSCALER_STATUS = b"__autoscaling_status"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster has, free or not."""

    nodes: tuple[Mapping[str, float], ...]
    """All resources of each node that is alive."""
    grows: bool = False
    """Whether an autoscaler may add nodes."""

    @classmethod
    def current(cls) -> Cluster:
        """Return the cluster that this process is connected to."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        return cls(tuple(node["Resources"] for node in alive), _has_autoscaler(alive))

    @property
    def cpus(self) -> float:
        """CPUs of all nodes."""
        return sum(node.get("CPU", 0.0) for node in self.nodes)

    def __str__(self) -> str:
        cpus, nodes = self.cpus, len(self.nodes)
        return f"{cpus:g} CPU{'s' * (cpus != 1)} on {nodes} node{'s' * (nodes != 1)}"


@dataclass(frozen=True, slots=True)
class Need:
    """What a run asks of a cluster."""

    least: int
    """The fewest workers that it starts with."""
    most: int
    """The most workers that it may have."""
    worker: Mapping[str, float]
    """Resources that each worker reserves, all on one node."""
    strategy: str = "PACK"
    """Ray's placement strategy of the workers."""
    reader_cpus: float = 0.0
    """CPUs of each worker's reader, beside what the worker reserves."""

    @classmethod
    def of(cls, scaling_config: Any, recipes: Iterable[PackedData] = ()) -> Need:
        """Return the need of a `ray.train.ScalingConfig` and of the recipes that its workers open."""
        workers = scaling_config.num_workers
        least, most = (workers, workers) if isinstance(workers, int) else workers
        worker = {"CPU": scaling_config.num_cpus_per_worker, "GPU": scaling_config.num_gpus_per_worker}
        worker |= scaling_config.additional_resources_per_worker
        reads = any(recipe.backend == "ray_data" for recipe in recipes)
        return cls(
            least=least,
            most=most,
            worker={name: amount for name, amount in worker.items() if amount},
            strategy=scaling_config.placement_strategy,
            reader_cpus=READER_CPUS if reads else 0.0,
        )

    def room(self, cluster: Cluster) -> int:
        """Return how many workers fit in the cluster, up to the maximum of the run."""
        rooms = [_times(self.worker, node, self.most) for node in cluster.nodes] or [0]
        if self.strategy == "STRICT_PACK":
            return max(rooms)
        if self.strategy == "STRICT_SPREAD":
            return min(self.most, sum(room > 0 for room in rooms))
        return min(self.most, sum(rooms))

    def readers(self, cluster: Cluster, workers: int) -> int:
        """Return for how many readers the CPUs suffice that so many workers leave, at most one a worker."""
        left = units_of(cluster.cpus) - workers * units_of(self.worker.get("CPU", 0.0))
        return _times({"CPU": self.reader_cpus}, {"CPU": left / _UNITS}, workers)

    def fault(self, cluster: Cluster) -> str | None:
        """Return why the run cannot start on a cluster and what to change, or None where it can.

        An elastic run starts as many workers as fit, so it is their readers that must fit beside them.
        """
        room = self.room(cluster)
        if room < self.least:
            return self._no_room(cluster, room)
        if self.readers(cluster, room) < room:
            return self._no_readers(cluster, room)
        return None

    def _no_room(self, cluster: Cluster, room: int) -> str:
        fewer = replace(self, least=room, most=room)
        remedies = [] if not room or fewer.fault(cluster) else [f"num_workers={room}"]
        if share := self._share(cluster):
            remedies.insert(0, share)
        where = {"STRICT_PACK": " on one node", "STRICT_SPREAD": " on a node each"}.get(self.strategy, "")
        return (
            f"ScalingConfig must ask for workers that the cluster can hold{where}, got num_workers="
            f"{_size(self.least, self.most)} of {dict(self.worker)} each: the cluster of {cluster} has room "
            f"for {room}{self._largest(cluster)}. {_remedy(remedies)}"
        )

    def _no_readers(self, cluster: Cluster, room: int) -> str:
        fitting = next((n for n in range(room, 0, -1) if self.readers(cluster, n) >= n), 0)
        least = min(self.least, fitting) if self.least == self.most else self.least
        remedies = [f"num_workers={_size(least, fitting)}"] if 0 < least <= fitting else []
        if (share := self._share(cluster)) and not (remedies and self.least < self.most):
            remedies.insert(0, share)
        return (
            f"workers must leave {self.reader_cpus:g} CPU each for their readers, got {room} workers that "
            f"reserve {room * self.worker.get('CPU', 0.0):g} of {cluster}. "
            f"{_remedy(remedies)}, or backend='direct', which needs none"
        )

    def _largest(self, cluster: Cluster) -> str:
        """Say what the best nodes have, where a worker fits on none of them."""
        lacking = [
            f"{max((node.get(name, 0.0) for node in cluster.nodes), default=0.0):g} {name}"
            for name in self.worker
        ]
        fits = any(_times(self.worker, node, 1) for node in cluster.nodes)
        return "" if fits else f" (no node has more than {', '.join(lacking)})"

    def _share(self, cluster: Cluster) -> str:
        """Return the most CPUs a worker, in hundredths, with which the run could start; empty if none do."""
        low, high = 0, int(100 * self.worker.get("CPU", 0.0))
        while low < high:  # the greatest share that fits lies in [low, high]
            middle = (low + high + 1) // 2
            smaller = replace(self, worker={**self.worker, "CPU": middle / 100})
            room = smaller.room(cluster)
            fits = room >= self.least and smaller.readers(cluster, room) >= room
            low, high = (middle, high) if fits else (low, middle - 1)
        return f"resources_per_worker={ {**self.worker, 'CPU': low / 100} }" if low else ""


def _remedy(remedies: list[str]) -> str:
    return f"Take {', or '.join([*remedies, 'more nodes'])}"


def _has_autoscaler(nodes: list[dict[str, Any]]) -> bool:
    """Whether nodes may be added by themselves: according to their labels or to the autoscaler.

    A node of a cluster that grows has a group, which its label names or the autoscaler's report does; in
    that report of a cluster that does not grow each node is a type of its own.
    """
    if any(node["Labels"].get(_NODE_GROUP) for node in nodes):
        return True
    status = _internal_kv_get(_AUTOSCALER_STATUS) or b""
    if not status.startswith(b"{"):  # there is no report yet, or none in this cluster
        return False
    types = (json.loads(status).get("autoscaler_report") or {}).get("node_type_mapping") or {}
    return any(kind != f"node_{node}" for node, kind in types.items())


def _times(part: Mapping[str, float], whole: Mapping[str, float], most: int) -> int:
    """Return how often a part fits into a whole, at most ``most`` times."""
    times = (
        units_of(whole.get(name, 0.0)) // units_of(amount)
        for name, amount in part.items()
        if units_of(amount)
    )
    return max(0, min([most, *times]))


def units_of(amount: float) -> int:
    """Return an amount of a resource in the whole parts that Ray counts."""
    return round(amount * _UNITS)


def _size(least: int, most: int) -> str:
    return f"{least}" if least == most else f"({least}, {most})"
