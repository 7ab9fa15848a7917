"""Opens a train worker's loader: worker context, source, checkpoint, peers, planner."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import ray.train.torch
import torch
from ray.train import Checkpoint

from raypack.actors.planner import start_planner
from raypack.actors.rendezvous_client import RendezvousClient, join_rendezvous
from raypack.arguments import choice, shown, text
from raypack.checkpoint.ledger import Ledger
from raypack.checkpoint.run_state import RunState
from raypack.errors import CheckpointError, LoaderError, SourceError
from raypack.source import ArrowSource, describe_change, open_source
from raypack.train.driver.local_mode import current_run
from raypack.train.driver.resources import check_readers
from raypack.train.elastic.data_ranks import data_ranks_of
from raypack.train.elastic.deal_starts import global_start, rank_start
from raypack.train.elastic.opened import Opened, opened_before, state_again, tell, word_of
from raypack.train.elastic.restoring import LAST, REFUSE, Origin
from raypack.train.elastic.standing import Standing
from raypack.train.elastic.worker_context import WorkerContext
from raypack.train.loader import PackedLoader
from raypack.train.recipe import PackedData
from raypack.train.reporting.last_report import remember_start

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

logger = logging.getLogger(__name__)

CHANGES = ("maximum_tokens", "maximum_examples", "batches_per_step")
"""Fields of a recipe that may change when a run resumes."""
_START_TIMEOUT_S = 300.0


def get_loader(
    recipe: PackedData,
    *,
    name: str | None = None,
    device: torch.device | str | None = None,
    may_change: Collection[str] = (),
    mesh: DeviceMesh | None = None,
    data_dim: str | Sequence[str] | None = None,
    checkpoint: Checkpoint | str | None = LAST,
    foreign: str = REFUSE,
) -> PackedLoader:
    """Return this train worker's loader, restored from the run's last checkpoint if there is one.

    Called by every rank in the train function; any number of workers may resume from a checkpoint. Opened
    again in the same attempt, such as after an error that the train function has caught, a loader resumes
    from what its processes have committed, as the model in their memory does; a warning says so where no
    checkpoint holds that. Only one of a name may be open at a time.

    Args:
        recipe: What is trained and how; the same on every rank.
        name: A name in checkpoints, for runs with several loaders.
        device: Where batches go; None is Ray Train's device of this worker.
        may_change: What of the recipe may differ from what the run began with, and holds from here on:
            any of ``maximum_tokens``, ``maximum_examples``, ``batches_per_step``. The ledger records it.
        mesh: All processes of the run, where some train the same data: tensor- or pipeline-parallel
            peers get the same batches in the same order, are counted once, and have one state in a
            checkpoint, whatever the deal. None: each process is a data rank.
        data_dim: The dimension of the mesh along which data differs, such as ``"dp"``, or several, such
            as ``("replicate", "shard")``.
        checkpoint: What the data resumes from, the checkpoint that the model was loaded from: ``last``,
            which `ray.train.get_checkpoint` returns, or what was committed in this attempt; another one, such
            as that of `get_good_checkpoint`; or None, to start from the beginning.
        foreign: What is done with a checkpoint that was reported without `raypack.train.report` and holds no
            state of any data: ``refuse`` it, or ``begin`` the data anew under its weights.

    Raises:
        LoaderError: Not in a Ray Train worker, a loader of this name is open, or ranks differ.
        StreamError: The train workers reserve the CPUs that their readers need.
        SourceError: The source cannot be opened on this node, or is not what the run began with.
        CheckpointError: A file of the checkpoint is missing, damaged, stale or foreign.
    """
    if not isinstance(recipe, PackedData):
        raise TypeError(f"recipe must be a PackedData, got {type(recipe).__name__}")
    if name is not None and not text("name", name, error=LoaderError).isidentifier():
        raise LoaderError(f"name must be a Python identifier, got {shown(name)}")
    allowed = _checked_changes(may_change)
    origin = Origin(checkpoint, foreign)
    worker = WorkerContext.current()
    if worker.local:
        current_run()
    worker = replace(worker, data_ranks=data_ranks_of(mesh, data_dim, worker.world_size))
    torch_device = torch.device(device) if device is not None else ray.train.torch.get_device()
    opened = opened_before(worker, name)
    opened.count += 1
    label = f"{name or ''}{opened.count}"
    rendezvous = join_rendezvous(worker.world_size, worker.rank, name=worker.actor_name("rendezvous", label))
    try:
        return _open(recipe, name, worker, torch_device, allowed, rendezvous, label, origin, opened)
    except BaseException:  # whatever the cause, this rank no longer takes part
        rendezvous.leave()
        raise


def _open(
    recipe: PackedData,
    name: str | None,
    worker: WorkerContext,
    device: torch.device,
    allowed: frozenset[str],
    rendezvous: RendezvousClient,
    label: str,
    origin: Origin,
    opened: Opened,
) -> PackedLoader:
    """Return the loader once all ranks have met; see `get_loader`."""
    check_readers(recipe, worker)
    source = _open_everywhere(rendezvous, worker, recipe)
    standing = opened.standing if origin.checkpoint == LAST else None
    restored = _agree(rendezvous, worker, source, recipe, name, origin, word_of(opened, standing), standing)
    if standing is None and restored is not None and origin.is_last:
        remember_start(worker.group, name, restored.to_dict())
    _check_restored(recipe, source, worker, restored, allowed)
    start = rank_start if recipe.deal == "rank" else global_start
    deal, spec, pace = start(recipe, source, worker, restored, device)
    whose = f"rank:{worker.rank}" if recipe.deal == "rank" else worker.node_id
    node_planner = start_planner(
        spec, name=worker.actor_name(f"planner:{whose}", label), node_id=worker.node_id
    )
    loader = PackedLoader(
        recipe,
        name=name,
        worker=worker,
        source=source,
        deal=deal,
        ledger=restored.ledger if restored else Ledger(),
        node_planner=node_planner,
        rendezvous=rendezvous,
        device=device,
        pace=pace,
        reported=standing.reported if standing is not None else None,
        on_close=opened.end,
    )
    if standing is not None:
        tell(name, standing)
    opened.begin(standing)
    return loader


def _open_everywhere(rendezvous: RendezvousClient, worker: WorkerContext, recipe: PackedData) -> ArrowSource:
    """Open the source on every rank, or raise on every rank the one error that names who lacks it."""
    source, fault = None, None
    try:
        source = open_source(recipe.source_path)
    except (SourceError, OSError) as error:
        fault = str(error)
    payload = (worker.node_address, fault)
    payloads = rendezvous.gather("source", payload, timeout_s=_START_TIMEOUT_S, what="get_loader")
    if source is None or any(other is not None for _, other in payloads):
        raise SourceError(_who_lacks(recipe.source_path, payloads))
    return source


def _who_lacks(path: str, payloads: list[tuple[str, str | None]]) -> str:
    """Say which ranks on which nodes cannot open a source, and why the first of them cannot."""
    lacking: dict[str, list[int]] = {}
    for rank, (node, fault) in enumerate(payloads):
        if fault is not None:
            lacking.setdefault(node, []).append(rank)
    first = next(fault for _, fault in payloads if fault is not None)
    nodes = "; ".join(f"node {node} (rank {', '.join(map(str, ranks))})" for node, ranks in lacking.items())
    where = nodes if any(fault is None for _, fault in payloads) else f"any node: {nodes}"
    return (
        f"the source {path} cannot be opened on {where}: {first}; put it where every node sees it under "
        "one path, such as a shared file system or an object store"
    )


def _agree(
    rendezvous: RendezvousClient,
    worker: WorkerContext,
    source: ArrowSource,
    recipe: PackedData,
    name: str | None,
    origin: Origin,
    again: dict[str, Any],
    standing: Standing | None,
) -> RunState | None:
    """Share what rank 0 reads of the checkpoint, or what all have committed since; see that all agree."""
    recipe = replace(recipe, source=recipe.source_path)
    own = {
        "fingerprint": source.fingerprint,
        "mesh": worker.data_ranks,
        "checkpoint": origin.label,
        "foreign": origin.foreign,
    }
    payload = {**own, **{f.name: getattr(recipe, f.name) for f in fields(recipe)}}
    payload |= {"again": again, "restored": None, "fault": None}
    if worker.rank == 0:
        try:
            payload["restored"] = None if standing is not None else origin.state(name, len(source))
        except (CheckpointError, OSError) as error:
            payload["fault"] = str(error)
    payloads = rendezvous.gather("start", payload, timeout_s=_START_TIMEOUT_S, what="get_loader")
    if payloads[0]["fault"] is not None:
        raise CheckpointError(payloads[0]["fault"])
    for rank, other in enumerate(payloads):
        for what, value in other.items():
            if what not in ("again", "restored", "fault") and value != payloads[0][what]:
                raise LoaderError(
                    f"rank {rank} has another {what} than rank 0: {shown(value)}, not "
                    f"{shown(payloads[0][what])}; every rank must open the same source with the same recipe"
                )
    state: RunState | None = payloads[0]["restored"]
    return state_again(name, standing, [payload["again"] for payload in payloads]) or state


def _checked_changes(may_change: Collection[str]) -> frozenset[str]:
    if isinstance(may_change, str) or not isinstance(may_change, Collection):
        raise TypeError(f"may_change must be a tuple of names, got {shown(may_change)}")
    return frozenset(choice("may_change", name, CHANGES, error=LoaderError) for name in may_change)


def _check_restored(
    recipe: PackedData,
    source: ArrowSource,
    worker: WorkerContext,
    restored: RunState | None,
    may_change: frozenset[str],
) -> None:
    """Refuse to go on with another source, or with a recipe that would plan otherwise."""
    if restored is None:
        return
    plan = restored.plan
    if plan.source_id != source.fingerprint:
        raise SourceError(
            "the source is not the one that this run began with: "
            f"{describe_change(restored.source, source)}; give the run another name to begin anew"
        )
    names = ("packing", "window", "seed", "shuffle", "batches_per_step")
    began = {"deal": restored.deal, **plan.options.to_dict(), **{name: getattr(plan, name) for name in names}}
    present = {
        "deal": recipe.deal,
        **recipe.options.to_dict(),
        "packing": recipe.packing_kind,
        "window": recipe.window or plan.window,
        "seed": recipe.seed,
        "shuffle": recipe.shuffle or plan.shuffle,
        "batches_per_step": recipe.step_batches or plan.batches_per_step,
    }
    for what, value in present.items():
        if value != began[what] and what not in may_change:
            raise CheckpointError(_refusal(what, began[what], value))
        if value != began[what] and worker.rank == 0:
            logger.warning("%s is %s from step %d on; it was %s", what, value, restored.step, began[what])
    if worker.rank == 0:
        logger.info("resuming at step %d on %d data ranks", restored.step, worker.data_world_size)


def _refusal(what: str, began: object, value: object) -> str:
    remedy = "give the run another name to begin anew"
    if what in CHANGES:
        remedy += f", or call get_loader(..., may_change=({what!r},)) to go on with it from here"
    return f"{what} must stay {shown(began)}, what this run began with; got {shown(value)}: {remedy}"
