"""The loaders that this process has opened: a second one of a name resumes where the last one ended.

The last checkpoint does not hold what was committed after it, but the model of this process does. So each
loader keeps its state here when it is closed, for the rest of its attempt.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raypack.batching.rank.state import TokenBatchState
from raypack.checkpoint.run_state import RunState
from raypack.checkpoint.sealing import canonical
from raypack.errors import LoaderError
from raypack.train.elastic.standing import Standing
from raypack.train.elastic.worker_context import WorkerContext

logger = logging.getLogger(__name__)

_REMEDY = (
    "let the error that closed the loader end the attempt, so that Ray Train starts a new one from the last "
    "checkpoint"
)


@dataclass(slots=True)
class Opened:
    """The loaders of one name in one attempt, on one rank."""

    count: int = 0
    """How often one was asked for."""
    is_open: bool = False
    """Whether the last one is still open."""
    standing: Standing | None = None
    """State of the last one that committed a step; None where the last checkpoint holds it."""

    def begin(self, standing: Standing | None) -> None:
        """Note that a loader is opened.

        Args:
            standing: State that it resumes from; None is a checkpoint, or the beginning of the run.
        """
        self.is_open, self.standing = True, standing

    def end(self, standing: Standing) -> None:
        """Note that it is closed, and keep its state."""
        self.is_open = False
        if standing.steps:
            self.standing = standing


_opened: dict[tuple[str, str | None, int], Opened] = {}


def opened_before(worker: WorkerContext, name: str | None) -> Opened:
    """Return what is known of a loader's name in an attempt."""
    return _opened.setdefault((worker.group, name, worker.rank), Opened())


def word_of(opened: Opened, standing: Standing | None) -> dict[str, Any]:
    """Return what a rank sends the others when a loader is opened; see `state_again`."""
    known = None if standing is None else {**standing.report_payload(), "record": standing.own}
    return {"open": opened.is_open, "standing": known}


def state_again(
    name: str | None, standing: Standing | None, payloads: Sequence[dict[str, Any]]
) -> RunState | None:
    """Return the state that a reopened loader resumes from; None where a checkpoint holds it.

    Args:
        name: The loader's name.
        standing: State of the one before, on this rank.
        payloads: What `word_of` returned on each rank.

    Raises:
        LoaderError: One is still open, or ranks differ in their state; the same on every rank.
    """
    who = "the loader" if name is None else f"the loader {name!r}"
    still = [rank for rank, payload in enumerate(payloads) if payload["open"]]
    if still:
        raise LoaderError(
            f"{who} is open already, on rank {', '.join(map(str, still))}: leave its 'with' block, or call "
            "loader.close(), before it is opened again in one attempt; loaders side by side need names of "
            "their own, get_loader(..., name=...)"
        )
    known = [payload["standing"] for payload in payloads]
    if standing is None or None in known:
        lacking = [rank for rank, one in enumerate(known) if one is None]
        if len(lacking) == len(known):
            return None
        raise LoaderError(
            f"{who} was opened again, but rank {', '.join(map(str, lacking))} has committed no step in this "
            f"attempt, others have: {_REMEDY}"
        )
    for rank, one in enumerate(known):
        if any(one[what] != known[0][what] for what in ("step", "digest", "refused")):
            raise LoaderError(
                f"{who} was opened again, but rank {rank} stands after step {one['step']}, rank 0 after step "
                f"{known[0]['step']}, and they cannot go on together: {_REMEDY}"
            )
    return _state(standing, known)


def _state(standing: Standing, payloads: list[dict[str, Any]]) -> RunState:
    values = standing.run_state(payloads[0]["digest"], payloads)
    records = None
    if standing.deal == "rank":
        records = [
            TokenBatchState.from_dict(payloads[first]["record"]) for first in standing.worker.first_peers
        ]
    return RunState.from_dict(json.loads(canonical(values)), records, standing.source["examples"])


def tell(name: str | None, standing: Standing) -> None:
    """Warn that a loader resumes from commits of its process that no checkpoint holds."""
    count = standing.steps_done - standing.reported
    if count and standing.worker.rank == 0:
        logger.warning(
            "%s was opened again: the data goes on at step %d, after %d committed steps that no checkpoint "
            "holds, as a model does that was kept in memory; where the model was loaded again from a "
            "checkpoint, give that to get_loader(..., checkpoint=ray.train.get_checkpoint())",
            "the loader" if name is None else f"the loader {name!r}",
            standing.steps_done,
            count,
        )
