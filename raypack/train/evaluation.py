"""Evaluation: every example of a source once over all ranks, alongside a training loader or alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import ray.train
import ray.train.torch
import torch

from raypack.arguments import integer, shown
from raypack.batching.plan import TokenBatchPlan
from raypack.batching.steps.planner import StepPlanner
from raypack.collate import PackedBatch
from raypack.collate.loss import next_token_loss_sum
from raypack.errors import LoaderError
from raypack.source import ArrowSource, open_source
from raypack.train.elastic.data_ranks import data_ranks_of
from raypack.train.elastic.process_group import require_group
from raypack.train.recipe import PackedData

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_BATCHES_AT_ONCE = 8
_Row = tuple[TokenBatchPlan, npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[np.int32] | None]


def get_evaluation(
    recipe: PackedData,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    device: torch.device | str | None = None,
    mesh: DeviceMesh | None = None,
    data_dim: str | Sequence[str] | None = None,
) -> Evaluation:
    """Return this rank's part of an evaluation source.

    Args:
        recipe: What is evaluated: source, budget, layout, packing. Ray Data, epochs, steps and reading
            ahead play no part.
        rank: Data rank; None is this Ray Train worker's.
        world_size: Data ranks; None are Ray Train's. Both are needed outside of a train function.
        device: Where batches go; None is Ray Train's device of this worker, and outside of one the CPU.
        mesh: All processes, where some share a data rank, in place of rank and world size; see
            `get_loader`.
        data_dim: The dimension of the mesh along which data differs, or several.

    Raises:
        LoaderError: One of rank and world size is given without the other or beside a mesh, rank is no
            rank, or the mesh does not hold all processes.
        SourceError: The source cannot be opened.
    """
    if not isinstance(recipe, PackedData):
        raise TypeError(f"recipe must be a PackedData, got {type(recipe).__name__}")
    if (rank is None) != (world_size is None):
        raise LoaderError(f"give both of rank and world_size or none, got {shown(rank)}, {shown(world_size)}")
    if world_size is not None and not (mesh is None and data_dim is None):
        raise LoaderError("rank and world_size must be left out beside mesh and data_dim, which tell them")
    peers = 1
    if world_size is None:
        context = ray.train.get_context()
        rank, processes = context.get_world_rank(), context.get_world_size()
        data_ranks = data_ranks_of(mesh, data_dim, processes) or range(processes)
        rank, world_size = data_ranks[rank], max(data_ranks) + 1
        peers = processes // world_size
        device = ray.train.torch.get_device() if device is None else device
    world_size = integer("world_size", world_size, minimum=1, error=LoaderError)
    rank = integer("rank", rank, minimum=0, maximum=world_size - 1, error=LoaderError)
    source = open_source(recipe.source_path)
    return Evaluation(recipe, source, rank, world_size, torch.device(device or "cpu"), peers)


class Evaluation:
    """This rank's batches of an evaluation source; made by `get_evaluation`.

    Each iteration goes once through the source: all ranks get the same number of batches, the last
    of them possibly empty, so that collectives in the model meet. It has no state to save.
    """

    def __init__(
        self,
        recipe: PackedData,
        source: ArrowSource,
        rank: int,
        world_size: int,
        device: torch.device,
        peers: int = 1,
    ) -> None:
        self._source, self._layout, self._device = source, recipe.options.layout, device
        self._rank, self._world_size, self._cost, self._peers = rank, world_size, recipe.cost, peers
        self._planner = StepPlanner(
            source.fingerprint,
            source.lengths,
            recipe.options,
            batches_per_step=_BATCHES_AT_ONCE * world_size,
            packing=recipe.packing_kind,
            window=recipe.window,
            seed=recipe.seed,
            supervised=source.supervised,
            shuffle=recipe.order_of(source),
        )

    @property
    def supervised_tokens(self) -> int:
        """Label tokens of the whole source."""
        return int(np.sum(self._source.supervised, dtype=np.int64))

    def __iter__(self) -> Iterator[PackedBatch]:
        planner = StepPlanner.from_state(
            self._planner.state(), self._source.lengths, self._planner.options, self._source.supervised
        )
        with ThreadPoolExecutor(1, thread_name_prefix="raypack-evaluation") as pool:
            ahead = pool.submit(self._read_next, planner)
            while rows := ahead.result():
                ahead = pool.submit(self._read_next, planner)
                yield from map(self._to_batch, rows)

    def loss(self, logits: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        """Return the cross entropy summed over the batch's supervised tokens; 0 for an empty batch.

        Args:
            logits: (1, T, vocabulary) or (B, S, vocabulary), as the model gives them.
            batch: The batch that the logits are of.
        """
        return next_token_loss_sum(logits, batch.labels)

    def mean(self, total: torch.Tensor | float) -> float:
        """Add a sum up over all ranks and divide by the source's supervised tokens; call it on every rank.

        Args:
            total: What this rank added up over one iteration, such as the values of `loss`; peers of one
                data rank, the same.

        Raises:
            LoaderError: There are several ranks and no process group of theirs.
        """
        summed = torch.as_tensor(total, dtype=torch.float64, device="cpu").detach().clone()
        processes = self._world_size * self._peers
        if processes > 1:
            require_group(processes, "mean")
            summed = summed.to(self._device)
            torch.distributed.all_reduce(summed)
        return float(summed) / self._peers / max(1, self.supervised_tokens)

    def _read_next(self, planner: StepPlanner) -> list[_Row]:
        """Read this rank's batches of the next step and move on; none at the end."""
        rows = []
        for step in planner.steps(0, 1):
            for plan in step.deal(self._world_size, self._cost)[self._rank]:
                rows.append((plan, *self._source.take_flat(plan.indices)))
            planner.commit_to(step.end)
        return rows

    def _to_batch(self, row: _Row) -> PackedBatch:
        plan, input_ids, lengths, labels = row
        return PackedBatch.from_flat(
            input_ids,
            lengths,
            labels=labels,
            indices=plan.indices,
            plan=plan,
            layout=self._layout,
            device=self._device,
        )
