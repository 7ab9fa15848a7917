"""What the run's last checkpoint holds, so that an identical report is not written again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray.train

from raypack.checkpoint.registered import registered
from raypack.checkpoint.sealing import digest_of
from raypack.train.reporting.saving import REASON

States = Mapping[str | None, dict[str, Any]]
"""The run's state as JSON values, by the loaders' names."""
_OF_A_REPORT = ("report_id", "world_size")
"""What differs between two reports of the same state."""


@dataclass(frozen=True, slots=True)
class LastReport:
    """What this process knows of the last checkpoint of its run."""

    states: dict[str | None, str]
    """Digest of each loader's state."""
    checkpoint: str
    """Name of its folder."""
    before: str | None = None
    """Name of the one before, which stays the last until all ranks have stored their files."""
    metrics: str | None = None
    """What was reported with it; None: the checkpoint is one that this attempt began with."""
    save: Callable[[str], None] | None = None
    """What wrote the model's files, where this attempt reported it."""

    def holds(self, states: States) -> bool:
        """Return whether a report's states are those of the checkpoint; the same on every rank."""
        return self.states == digests_of(states)

    def is_like(self, metrics: Mapping[str, Any], save: Callable[[str], None] | None, rank: int) -> bool:
        """Return whether another report, but for its states, would write the same checkpoint.

        Metrics count, since Ray Train keeps them with a checkpoint alone: ``Result.metrics`` are those of the
        last one. Where an attempt has not reported yet, the model is what the checkpoint holds, as long as
        no step is committed.
        """
        last = ray.train.get_checkpoint()
        name = folder_name(last)
        if last is None or name not in (self.checkpoint, None if REASON in metrics else self.before):
            return False  # another one was reported since
        if self.metrics is not None:
            return self.save == save and self.metrics == text_of(metrics)
        if rank != 0:
            return True  # Ray Train keeps the metrics of rank 0
        run = last.path.rstrip("/").rsplit("/", 1)[0]
        known = [text_of(one.metrics) for one in registered(last.filesystem, run) if one.path == last.path]
        return text_of(metrics) in known


def digests_of(states: States) -> dict[str | None, str]:
    """Return a digest of each state, without what differs between two reports of the same."""
    return {
        name: digest_of({field: value for field, value in values.items() if field not in _OF_A_REPORT})
        for name, values in states.items()
    }


def text_of(metrics: Mapping[str, Any]) -> str:
    """Return metrics as text that is the same for equal ones, without raypack's own."""
    return json.dumps({name: value for name, value in metrics.items() if name != REASON}, sort_keys=True)


def folder_name(checkpoint: Any) -> str | None:
    """Return the name of a checkpoint's folder."""
    return None if checkpoint is None else checkpoint.path.rstrip("/").rsplit("/", 1)[-1]


_reports: dict[str, LastReport] = {}


def last_report(group: str) -> LastReport | None:
    """Return the last report of an attempt, or the checkpoint that it began with."""
    return _reports.get(group)


def remember_report(group: str, report: LastReport) -> None:
    """Keep what an attempt has reported last."""
    _reports[group] = report


def remember_start(group: str, name: str | None, state: dict[str, Any]) -> None:
    """Keep that a loader begins with what the run's last checkpoint holds.

    Args:
        group: The attempt.
        name: The loader's name.
        state: The run's state as JSON values.
    """
    checkpoint = folder_name(ray.train.get_checkpoint())
    if checkpoint is None:
        return
    known = _reports.get(group)
    states = known.states if known is not None and known.checkpoint == checkpoint else {}
    _reports[group] = LastReport({**states, **digests_of({name: state})}, checkpoint)
