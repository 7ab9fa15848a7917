"""Opens the source that a checkpoint names, if that is safe: the checkpoint is untrusted."""

from __future__ import annotations

import os

from raypack.checkpoint.run_state import RunState
from raypack.errors import CheckpointError, SourceError
from raypack.source import ArrowSource, describe_change, open_source
from raypack.source.paths.location import public, store_of

Path = str | os.PathLike[str]


def open_recorded(recorded: str, run: Path, given: Path | None) -> ArrowSource:
    """Open a run's source for an audit.

    A checkpoint that somebody else wrote must not make this machine call another: a remote source is
    opened if the run itself lies in the same store, or if the caller names it.

    Args:
        recorded: Where the run found it, as the checkpoint says.
        run: Where the run lies, as the caller says.
        given: Where it lies now, as the caller says; None is ``recorded``.

    Raises:
        CheckpointError: ``recorded`` lies in another store than the run and ``given`` is None.
        SourceError: There is no source, or it is damaged.
    """
    if given is not None:
        return open_source(given)
    store = store_of(recorded)
    if store is not None and store != store_of(os.fspath(run)):
        raise CheckpointError(
            f"the source that the checkpoint names, {public(recorded)}, lies in another store than the run, "
            "and is not opened on the checkpoint's word: give it as the source (--source) if you trust it"
        )
    return open_source(recorded)


def check_source(state: RunState, source: ArrowSource) -> None:
    """Refuse a source that is not the one that a state was trained on.

    Raises:
        SourceError: It is another source; what changed is said.
        CheckpointError: The state says of this source what is not so.
    """
    plan = state.plan
    if source.fingerprint != plan.source_id:
        raise SourceError(
            f"the source at {public(source.path)} is not the one that the run trained: "
            f"{describe_change(state.source, source)}"
        )
    said = {"examples": plan.source_length, "the digest of its length table": plan.lengths_digest}
    found = {"examples": len(source), "the digest of its length table": source.lengths.digest}
    said["tokens"], found["tokens"] = state.source["tokens"], source.manifest.tokens
    for what, value in said.items():
        if value != found[what]:
            raise CheckpointError(f"{what} of the source must be {found[what]}, the state says {value}")
