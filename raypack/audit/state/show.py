"""What a checkpoint holds of the data: everything that it records, read offline."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.fs as pafs

from raypack.audit.recorded_source import Path
from raypack.audit.state.find import LocatedCheckpoint, find, named, reach
from raypack.audit.state.remaining import Remaining, remaining_of
from raypack.batching.steps.state import StepPlannerState
from raypack.checkpoint.files import FOLDER
from raypack.checkpoint.reading import folder_of
from raypack.checkpoint.run_state import RunState
from raypack.source.paths.location import public


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """One loader's part of a checkpoint."""

    checkpoint: str
    """Path of the checkpoint on its file system."""
    name: str | None
    state: RunState
    source_fault: str
    """Why the source cannot be read; empty where it can."""
    left: Remaining
    """What is left of the epoch."""
    files: tuple[tuple[str, int], ...]
    """The loader's files with their sizes in bytes."""
    others: tuple[int, int]
    """How many files the checkpoint has that are not raypack's, and their bytes."""

    def source(self) -> dict[str, Any]:
        """Return what is known of the source, without the secrets of its URI."""
        known = {name: self.state.source.get(name) for name in ("examples", "tokens", "prepared")}
        path = public(self.state.source_path)
        return {"path": path, "fingerprint": self.state.plan.source_id, **known, "fault": self.source_fault}

    def plan(self) -> dict[str, Any]:
        """Return what decides which examples a step holds."""
        plan = self.state.plan
        names = ("packing", "window", "seed", "shuffle", "batches_per_step")
        return {**plan.options.to_dict(), **{name: getattr(plan, name) for name in names}}

    def cursor(self) -> dict[str, Any]:
        """Return where the epoch stands: under the rank deal, what its head and tail are."""
        plan = self.state.plan
        if isinstance(plan, StepPlannerState):
            return {**asdict(plan.cursor), "repacked": len(plan.repacked)}
        sampler = plan.consolidated.sampler
        return {"steps": plan.steps, "consumed": sampler.consumed, "head": len(sampler.head)}

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        state = self.state
        return {
            "checkpoint": self.checkpoint,
            "loader": self.name,
            **{name: getattr(state, name) for name in ("deal", "report_id", "world_size", "step")},
            "epoch": state.plan.epoch,
            "goal": state.goal.to_dict(),
            "source": self.source(),
            "plan": self.plan(),
            "cursor": self.cursor(),
            "left": asdict(self.left),
            **state.ledger.to_dict(),
            "files": dict(self.files),
            "other_files": dict(zip(("count", "bytes"), self.others, strict=True)),
        }


def show(run: Path, *, name: str | None = None, source: Path | None = None) -> list[StateView]:
    """Read what a checkpoint holds; no Ray is started.

    Args:
        run: ``<storage_path>/<run name>``, or one checkpoint of it; a path or URI.
        name: The loader's name; None is all loaders of the checkpoint.
        source: Where the source lies now; None is where the run found it.

    Raises:
        CheckpointError: There is no checkpoint, or a file of it is missing, damaged, stale or foreign.
    """
    found = find(run)
    names = found.names if name is None and found.names else (name,)
    return [_view(found, one, source) for one in names]


def _view(found: LocatedCheckpoint, name: str | None, source: Path | None) -> StateView:
    reached = reach(found, name, source)
    with named(found):
        left = remaining_of(reached.state, reached.source)
    files, others = _files(found, name)
    return StateView(
        checkpoint=found.path,
        name=name,
        state=reached.state,
        source_fault=reached.fault,
        left=left,
        files=files,
        others=others,
    )


def _files(found: LocatedCheckpoint, name: str | None) -> tuple[tuple[tuple[str, int], ...], tuple[int, int]]:
    infos = found.filesystem.get_file_info(pafs.FileSelector(found.path, recursive=True))
    sizes = {info.path: int(info.size) for info in infos if info.type == pafs.FileType.File}
    ours, own = f"{found.path}/{FOLDER}/", folder_of(found.path, name) + "/"
    files = [
        (path[len(own) :], size)
        for path, size in sorted(sizes.items())
        if path.startswith(own) and "/" not in path[len(own) :]
    ]
    others = [size for path, size in sizes.items() if not path.startswith(ours)]
    return tuple(files), (len(others), sum(others))
