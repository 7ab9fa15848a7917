"""Which checkpoint a run resumes from, and the error where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.fs as pafs
import ray.train
from ray.train import Checkpoint

from raypack.arguments import choice, shown
from raypack.checkpoint.reading import loader_names, read_state
from raypack.checkpoint.registered import registered
from raypack.checkpoint.run_state import RunState
from raypack.errors import CheckpointError, LoaderError

logger = logging.getLogger(__name__)

LAST = "last"
"""The run's last checkpoint, which `ray.train.get_checkpoint` returns."""
REFUSE, BEGIN = "refuse", "begin"


def get_good_checkpoint(names: Sequence[str | None] = (None,)) -> Checkpoint | None:
    """Return the run's newest checkpoint from which the data can resume; call it in the train function.

    Use it in place of `ray.train.get_checkpoint` where the last checkpoint is damaged: load the model from
    what it returns, and give that to ``get_loader(..., checkpoint=...)``. If the last one is good, both
    return the same, so a train function may always use it. Only the data's state is read, not the model's
    files.

    Args:
        names: Names of the run's loaders; an unnamed one is None.

    Returns:
        The checkpoint; None where the run has none yet.

    Raises:
        CheckpointError: The run has checkpoints, and none of them is good.
    """
    last = ray.train.get_checkpoint()
    if last is None:
        return None
    faults = []
    for path in _newest_first(last):
        try:
            for name in names:
                check_state(last.filesystem, path, name)
        except (CheckpointError, OSError) as error:
            faults.append(str(error))
            continue
        for fault in faults:
            logger.warning("going on from %s, since a newer checkpoint is not good: %s", path, fault)
        return last if path == last.path else Checkpoint(path, last.filesystem)
    raise CheckpointError(
        f"no checkpoint of this run is good, begin under another run name: {'; '.join(faults)}"
    )


def check_state(
    filesystem: pafs.FileSystem, path: str, name: str | None, examples: int | None = None
) -> RunState:
    """Return a loader's state from a checkpoint; ``examples`` are those of the open source.

    Raises:
        CheckpointError: The state is not there, or not right; the file and the fault are named.
    """
    if not loader_names(filesystem, path):
        raise CheckpointError(
            f"the checkpoint {path} was reported without raypack.train.report and holds no state of the "
            "data, so that a run that went on from it would begin the data anew under trained weights: "
            "call raypack.train.report(metrics, loader, save=save) in place of ray.train.report"
        )
    return read_state(filesystem, path, name, examples=examples)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a loader resumes from; see `get_loader` for both fields."""

    checkpoint: Checkpoint | str | None = LAST
    foreign: str = REFUSE

    def __post_init__(self) -> None:
        choice("foreign", self.foreign, (REFUSE, BEGIN), error=LoaderError)
        if not (self.checkpoint in (None, LAST) or isinstance(self.checkpoint, Checkpoint)):
            raise TypeError(
                f"checkpoint must be a ray.train.Checkpoint, None or {LAST!r}, got {shown(self.checkpoint)}; "
                "raypack.train.get_good_checkpoint() returns the newest good one"
            )

    @property
    def label(self) -> str | None:
        """A label of the checkpoint, for ranks to compare."""
        return self.checkpoint.path if isinstance(self.checkpoint, Checkpoint) else self.checkpoint

    @property
    def is_last(self) -> bool:
        """Whether it is the run's last checkpoint."""
        last = ray.train.get_checkpoint()
        return last is not None and self.label in (LAST, last.path)

    def _last(self) -> Checkpoint | None:
        return ray.train.get_checkpoint() if self.checkpoint == LAST else None

    def state(self, name: str | None, examples: int | None = None) -> RunState | None:
        """Return the state that a loader resumes from; None where it starts from the beginning.

        Args:
            name: The loader's name.
            examples: Examples of the source that is open.

        Raises:
            CheckpointError: The checkpoint cannot be resumed from; the message says which one can, and how.
        """
        found = self.checkpoint if isinstance(self.checkpoint, Checkpoint) else self._last()
        if found is None:
            return None
        holds_data = bool(loader_names(found.filesystem, found.path))
        if not holds_data and self.foreign == BEGIN:
            logger.warning("the data begins anew: the checkpoint %s holds no state of it", found.path)
            return None
        try:
            return check_state(found.filesystem, found.path, name, examples)
        except CheckpointError as error:
            way_on = _way_on(found, name)
            if not holds_data:
                way_on += f"; or call get_loader(..., foreign={BEGIN!r}) to begin the data under its weights"
            raise CheckpointError(f"{error}. {way_on}") from error


def _way_on(found: Checkpoint, name: str | None) -> str:
    """Say from which checkpoint a run can resume, and how."""
    try:
        others = _newest_first(found)[1:]
    except (CheckpointError, OSError) as error:
        return f"What else the run has is not known: {error}"
    for path in others:
        try:
            check_state(found.filesystem, path, name)
        except (CheckpointError, OSError):
            continue  # its fault is named if the run tries to resume from it
        names = "" if name is None else f"names=({name!r},)"
        return (
            f"The newest good checkpoint of this run is {path.rsplit('/', 1)[-1]}: to go on from it, set "
            f"checkpoint = raypack.train.get_good_checkpoint({names}) in place of "
            "ray.train.get_checkpoint(), load the model from that, and call "
            "get_loader(..., checkpoint=checkpoint)"
        )
    return "This run has no other good checkpoint: give the run another name to begin anew"


def _newest_first(found: Checkpoint) -> list[str]:
    """Return the paths of a checkpoint and of its run's others, these the newest first."""
    run = found.path.rstrip("/").rsplit("/", 1)[0]
    others = [one.path for one in registered(found.filesystem, run)]
    return [found.path, *(path for path in others if path != found.path)]
