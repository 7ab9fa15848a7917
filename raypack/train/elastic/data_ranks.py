"""Which processes train the same data: tensor- and pipeline-parallel peers share a data rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from raypack.arguments import shown, type_name
from raypack.checkpoint.ledger import EpochEntry
from raypack.errors import LoaderError
from raypack.train.elastic.worker_context import WorkerContext

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_Payload = TypeVar("_Payload")


def data_ranks_of(
    mesh: DeviceMesh | None, data_dim: str | Sequence[str] | None, world_size: int
) -> tuple[int, ...] | None:
    """Return the data rank of each process, or None where each process has its own number.

    Args:
        mesh: All processes of the run, or None.
        data_dim: The dimension, or dimensions, along which processes train different data; None is the
            only one that the mesh has.
        world_size: Processes of the run.

    Raises:
        LoaderError: The mesh does not hold every process once, or has no such dimension.
    """
    if mesh is None:
        if data_dim is not None:
            raise LoaderError(f"data_dim needs a mesh, got {shown(data_dim)} alone: give mesh=... too")
        return None
    names = _names(mesh)
    dims = _dims(data_dim, names)
    processes = mesh.mesh
    held = processes.flatten().tolist()
    if sorted(held) != list(range(world_size)):
        raise LoaderError(
            f"mesh must hold all {world_size} processes of the run, got {shown(held)}: give "
            "the whole mesh, not a slice of it, and name its data dimensions with data_dim"
        )
    others = [axis for axis, name in enumerate(names) if name not in dims]
    count = math.prod(processes.shape[names.index(dim)] for dim in dims)
    by_data_rank = processes.permute(*map(names.index, dims), *others).reshape(count, -1)
    ranks = [0] * world_size
    for data_rank, peers in enumerate(by_data_rank.tolist()):
        for process in peers:
            ranks[process] = data_rank
    return None if ranks == [*range(world_size)] else tuple(ranks)


def _names(mesh: object) -> tuple[str, ...]:
    names = getattr(mesh, "mesh_dim_names", None)
    if not hasattr(mesh, "mesh_dim_names"):
        raise TypeError(f"mesh must be a torch DeviceMesh, got {type_name(mesh)}")
    if not names:
        raise LoaderError(
            "mesh must have names for its dimensions, got none: "
            "init_device_mesh(..., mesh_dim_names=('dp', 'tp'))"
        )
    return tuple(names)


def _dims(data_dim: str | Sequence[str] | None, names: tuple[str, ...]) -> tuple[str, ...]:
    if data_dim is None:
        if len(names) > 1:
            raise LoaderError(
                f"data_dim must name the dimensions of the mesh along which data differs, got none of "
                f"{', '.join(names)}: give data_dim={names[0]!r}, or a tuple of several"
            )
        return names
    dims = (data_dim,) if isinstance(data_dim, str) else tuple(data_dim)
    for dim in dims:
        if dim not in names:
            raise LoaderError(
                f"data_dim must be among the dimensions of the mesh, {', '.join(names)}; got {shown(dim)}"
            )
    if not dims or len(set(dims)) < len(dims):
        raise LoaderError(f"data_dim must name one or more dimensions, each once, got {shown(data_dim)}")
    return dims


OTHER_EXAMPLES = (
    "has trained other examples than",
    "peers must take and commit the same batches",
)
"""The error for peers whose receipts differ, and the remedy."""
OTHER_STATE = (
    "stands elsewhere in its shard than",
    "peers must end the same steps, each once, with step.commit or step.skip",
)
"""The error for peers whose states differ, and the remedy."""


def by_data_rank(
    worker: WorkerContext, payloads: Sequence[_Payload], differing: tuple[str, str] = OTHER_EXAMPLES
) -> list[_Payload]:
    """Return one value for each data rank, that of its first process.

    Args:
        worker: Where this process stands.
        payloads: One a process, by rank; peers of a data rank must have the same.
        differing: What is said where they have not, and the remedy.

    Raises:
        LoaderError: Peers differ.
    """
    what, remedy = differing
    firsts = worker.first_peers
    for rank, data_rank in enumerate(worker.data_ranks or ()):
        first = firsts[data_rank]
        if payloads[rank] != payloads[first]:
            raise LoaderError(
                f"rank {rank} {what} rank {first}, and both are data rank {data_rank}: {remedy}"
            )
    return [payloads[first] for first in firsts]


def entries_by_data_rank(
    worker: WorkerContext, payloads: Sequence[list[EpochEntry]]
) -> list[list[EpochEntry]]:
    """Return what each data rank has trained of each epoch; what any of its peers has observed counts.

    Under pipeline parallelism the last stage alone has a loss. Peers are not compared step by step: of
    peers that have observed different steps the one counts that has observed most.

    Args:
        worker: Where this process stands.
        payloads: The entries of each process, by rank.

    Raises:
        LoaderError: Peers have committed different examples.
    """
    equal = by_data_rank(worker, [[replace(entry, observed=0) for entry in payload] for payload in payloads])
    most = [[0] * len(entries) for entries in equal]
    for payload, data_rank in zip(payloads, worker.data_ranks or range(worker.world_size), strict=True):
        most[data_rank] = [max(*both) for both in zip(most[data_rank], _observed(payload), strict=True)]
    return [
        [replace(entry, observed=count) for entry, count in zip(entries, counts, strict=True)]
        for entries, counts in zip(equal, most, strict=True)
    ]


def _observed(payload: list[EpochEntry]) -> list[int]:
    return [entry.observed for entry in payload]
