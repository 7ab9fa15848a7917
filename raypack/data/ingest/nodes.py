"""Finds the nodes that cannot access a path, before any work is done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raypack.errors import PrepareError
from raypack.source.paths.location import locate

_WAIT_S = 60.0


def check_nodes(paths: Sequence[str]) -> None:
    """Check that each node sees each local path; a cluster of one node has nothing to check.

    Args:
        paths: Paths and URIs; what lies in a store is not checked.

    Raises:
        PrepareError: naming the paths and the nodes that do not see them.
    """
    local = [place.path for place in map(locate, paths) if place.is_local]
    # Nodes without a CPU get no tasks.
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    if len(nodes) < 2 or not local:
        return
    task = ray.remote(num_cpus=0)(_missing)
    asked = {
        f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})": task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(local)
        for node in nodes
    }
    answers = {address: _answer(address, reference) for address, reference in asked.items()}
    blind = {address: missing for address, missing in answers.items() if missing}
    if blind:
        listed = "; ".join(f"node {address}: {', '.join(missing)}" for address, missing in blind.items())
        raise PrepareError(
            f"some nodes do not see all paths ({listed}); use a file system that every node mounts, or a URI"
        )


def _answer(address: str, reference: Any) -> list[str]:
    try:
        return ray.get(reference, timeout=_WAIT_S)
    except ray.exceptions.RayError as error:
        raise PrepareError(f"node {address} does not say which paths it sees: {error}") from error


def _missing(paths: list[str]) -> list[str]:
    return [path for path in paths if not os.path.exists(path)]
