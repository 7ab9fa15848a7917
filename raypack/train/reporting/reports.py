"""A report: metrics, the model's files and the data's state in one Ray Train checkpoint."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import ray.train

from raypack.actors.rendezvous_client import RendezvousClient
from raypack.arguments import choice, type_name
from raypack.checkpoint.files import (
    FOLDER,
    Entry,
    checkpoint_name,
    loader_folder,
    write_manifest,
    write_rank,
    write_state,
)
from raypack.errors import LoaderError
from raypack.train.loader import PackedLoader
from raypack.train.reporting.barrier import ReportBarrier
from raypack.train.reporting.last_report import (
    LastReport,
    digests_of,
    folder_name,
    last_report,
    remember_report,
    text_of,
)
from raypack.train.reporting.saving import REASON
from raypack.train.reporting.sending import RankDirectory, send, send_metrics

_reports: WeakKeyDictionary[RendezvousClient, int] = WeakKeyDictionary()
"""How many reports were begun in each rendezvous: as many on every rank."""


def report(
    metrics: Mapping[str, Any],
    loader: PackedLoader | Mapping[str, PackedLoader],
    *,
    save: Callable[[str], None] | None = None,
    upload: str = "sync",
    timeout_s: float = 600.0,
) -> None:
    """Report metrics and a checkpoint that holds the model and the data's state; call it on every rank.

    Where no step was committed since the run's last checkpoint, and metrics and ``save`` are those of that
    one, it holds all of this already: ``save`` is not called, nothing is written, and the metrics alone go
    to Ray Train. So the report after a loop costs nothing where the loop's own was the last.

    Args:
        metrics: JSON values; Ray Train keeps those of rank 0.
        loader: The loader, or several by their names.
        save: Called on every rank with a directory of its own, whose files join the checkpoint;
            names must differ between ranks (write the model on rank 0, optimizer shards by rank). It is
            called again, between two later steps, when the run is about to be resized or a node to be
            taken away: so it must save what is there then.
        upload: ``sync`` returns when every rank's files are in the run's storage. ``async`` returns once
            they are written locally and uploads them during training; the checkpoint counts, and a
            restart resumes from it, once all ranks have uploaded theirs. Files wait in TMPDIR meanwhile.
        timeout_s: How long a rank waits for the others before it names who is missing, seconds;
            uploads may take longer.

    Raises:
        LoaderError: A rank did not report or failed, ranks differ in their state, a step is not
            committed, two ranks wrote one file name, or metrics are no JSON.
        CheckpointError: A file cannot be written, on this rank. The checkpoint before stays the last;
            let it end the attempt, so that Ray Train starts a new one from there.
    """
    loaders = _by_name(loader)
    _check_json(metrics)
    if save is not None and not callable(save):
        raise TypeError(f"save must be a function of a directory, got {type_name(save)}")
    choice("upload", upload, ("sync", "async"), error=LoaderError)
    first = next(iter(loaders.values()))
    worker = first.worker
    payloads = {name: one.report_payload() for name, one in loaders.items()}
    count = _reports.get(first.rendezvous, 0) + 1  # after the checks: what they refuse is no report
    _reports[first.rendezvous] = count
    barrier = ReportBarrier(first.rendezvous, count, timeout_s)
    last = last_report(worker.group)
    same = last is not None and last.is_like(metrics, save, worker.rank)
    ranks = barrier.share("report", {"report_id": uuid.uuid4().hex, "payloads": payloads, "same": same})
    _check_agreement([rank["payloads"] for rank in ranks])
    states = {
        name: one.run_state(ranks[0]["report_id"], [rank["payloads"][name] for rank in ranks])
        for name, one in loaders.items()
    }
    if last is not None and last.holds(states) and all(rank["same"] for rank in ranks):
        send_metrics(dict(metrics), worker.local)
    else:
        before = folder_name(ray.train.get_checkpoint())
        name = checkpoint_name(next(iter(states.values())))
        with RankDirectory() as directory:
            _write_files(barrier, directory, loaders, states, save)
            send(dict(metrics), directory, name, "local" if worker.local else upload, barrier)
        written = LastReport(digests_of(states), name, before, text_of(metrics), save)
        remember_report(worker.group, written)
    # Only a run's single loader can report unasked: of several, another may be inside a step.
    again = _again(metrics, loader, save, timeout_s) if len(loaders) == 1 else None
    for one in loaders.values():
        one.remember(again)


def _write_files(
    barrier: ReportBarrier,
    directory: RankDirectory,
    loaders: dict[str | None, PackedLoader],
    states: dict[str | None, dict[str, Any]],
    save: Callable[[str], None] | None,
) -> None:
    """Write every rank's files and, last of all, the manifests on rank 0."""

    def own_files() -> dict[str, Any]:
        entries = _fill(directory.make(), loaders, states, save)
        return {"files": _files(directory.path), "entries": entries}

    filled = barrier.do("files", own_files)
    _check_names([rank["files"] for rank in filled])

    def manifests() -> None:
        for name, loader in loaders.items():
            if loader.worker.rank == 0:
                files = {file: entry for rank in filled for file, entry in rank["entries"][name].items()}
                write_manifest(loader_folder(directory.path, name), states[name], files)

    barrier.do("manifest", manifests)


def _again(
    metrics: Mapping[str, Any],
    loader: PackedLoader | Mapping[str, PackedLoader],
    save: Callable[[str], None] | None,
    timeout_s: float,
) -> Callable[[dict[str, Any]], None]:
    """Return how to make a report once more, with some metrics of raypack's own."""
    kept = {name: value for name, value in metrics.items() if name != REASON}
    return lambda more: report({**kept, **more}, loader, save=save, timeout_s=timeout_s)


def _by_name(loader: PackedLoader | Mapping[str, PackedLoader]) -> dict[str | None, PackedLoader]:
    if isinstance(loader, PackedLoader):
        return {loader.name: loader}
    if not isinstance(loader, Mapping) or not loader:
        raise TypeError(f"loader must be a PackedLoader or a dict of some, got {type(loader).__name__}")
    for name, one in loader.items():
        if one.name != name:
            raise LoaderError(f"loader {name!r} must be opened with get_loader(..., name={name!r})")
    by_name: dict[str | None, PackedLoader] = {}
    by_name.update(sorted(loader.items(), key=lambda item: str(item[0])))  # ranks meet at the first
    return by_name


def _check_json(metrics: Mapping[str, Any]) -> None:
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a dict, got {type_name(metrics)}")
    for key, value in metrics.items():
        try:
            json.dumps({key: value})
        except (TypeError, ValueError):  # json's own traceback would push the loop's out of Ray's short one
            raise LoaderError(
                f"metrics[{key!r}] must be a JSON value, got {type(value).__name__}: use .item() or float()"
            ) from None


def _check_agreement(ranks: list[dict[str | None, dict[str, Any]]]) -> None:
    for rank, payloads in enumerate(ranks):
        if set(payloads) != set(ranks[0]):
            raise LoaderError(f"rank {rank} reports the loaders {list(payloads)}, rank 0 {list(ranks[0])}")
        for name, own in payloads.items():
            zero = ranks[0][name]
            if own["step"] != zero["step"] or own["digest"] != zero["digest"]:
                raise LoaderError(
                    f"rank {rank} reports after step {own['step']}, rank 0 after step {zero['step']}: "
                    "all ranks must report at the same step and in the same state"
                )
            if own["refused"] != zero["refused"]:
                raise LoaderError(
                    f"rank {rank} has retried or skipped other steps than rank 0 ([retries, skips, skipped "
                    f"steps] of each epoch: {own['refused']}, not {zero['refused']}): call step.retry and "
                    "step.skip on every rank"
                )


def _fill(
    directory: Path,
    loaders: dict[str | None, PackedLoader],
    states: dict[str | None, dict[str, Any]],
    save: Callable[[str], None] | None,
) -> dict[str | None, dict[str, Entry]]:
    """Write the user's files and this rank's share of raypack's; return the entries of the latter."""
    if save is not None:
        save(str(directory))
    if (directory / FOLDER).exists():
        raise LoaderError(f"save wrote {FOLDER}/ into the checkpoint: that name is taken, choose another")
    entries: dict[str | None, dict[str, Entry]] = {}
    for name, loader in loaders.items():
        folder, values, rank = loader_folder(directory, name), states[name], loader.worker.rank
        entries[name] = write_state(folder, values) if rank == 0 else {}
        own, worker = loader.own_record(), loader.worker
        if own is not None and worker.is_first_peer:
            data = {"rank": worker.data_rank, "world_size": worker.data_world_size}
            entries[name] |= write_rank(folder, own, report_id=values["report_id"], **data)
    return entries


def _files(directory: Path) -> list[str]:
    return sorted(str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file())


def _check_names(ranks: list[list[str]]) -> None:
    owner: dict[str, int] = {}
    for rank, files in enumerate(ranks):
        for file in files:
            if file in owner:
                raise LoaderError(
                    f"ranks {owner[file]} and {rank} both saved {file!r}, and one would overwrite the "
                    "other: write it on rank 0 alone, or put the rank in its name"
                )
            owner[file] = rank
