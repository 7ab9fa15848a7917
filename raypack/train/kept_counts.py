"""Counts of batches that are kept beside a source's manifest, and believed only where they may be true.

A count lies in ``raypack-counts/`` under a name that covers all that it depends on, and says that name and
a digest of itself. What is damaged, of another name, or outside of what the source's own numbers allow is
made again. Writers of one count write the same, so any of them may come last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from dataclasses import dataclass

from raypack.arguments import integer
from raypack.batching.options import TokenBatchLayout
from raypack.batching.steps.planner import StepPlanner
from raypack.errors import SourceError
from raypack.guards import degrade
from raypack.source.paths.location import locate

logger = logging.getLogger(__name__)

FOLDER = "raypack-counts"
_MOST_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """How many batches an epoch has at least and at most, whatever its order."""

    least: int
    most: int


def limits_of(examples: int, tokens: int, planner: StepPlanner) -> Limits:
    """Return the limits that a source's examples and tokens set under a planner's options.

    No batch holds more than its budget. A new one is begun only for what fits into none that is open, so
    at most one in a window is filled by half or less, and of two neighbours of greedy packing never both.
    """
    budget, most_examples = planner.options.maximum_tokens, planner.options.maximum_examples
    least = -(-tokens // budget)
    if most_examples is not None:
        return Limits(max(least, -(-examples // most_examples)), examples)
    if planner.options.layout is not TokenBatchLayout.PACKED:  # padding takes slots too
        return Limits(least, examples)
    windows = -(-examples // planner.window) if planner.window else 1
    return Limits(least, min(examples, 2 * tokens // budget + windows))


def kept_count(path: str, key: str, limits: Limits) -> int | None:
    """Return a kept count, or None where there is none that can be believed."""
    try:
        folder = locate(path)
        with folder.filesystem.open_input_stream(folder.child(f"{FOLDER}/{key}.json")) as file:
            return _checked(json.loads(file.read(_MOST_BYTES)), key, limits)
    except FileNotFoundError:
        return None
    except Exception as error:  # each file system has errors of its own, and the count can be made again
        degrade(logger, "the kept count %s is not believed and made again: %s", key, error)
        return None


def keep_count(path: str, key: str, batches: int) -> None:
    """Keep a count beside a source, where that can be written."""
    record = json.dumps({"of": key, "batches": batches, "digest": _digest(key, batches)}).encode()
    try:
        folder = locate(path)
        target = folder.child(f"{FOLDER}/{key}.json")
        # A store puts an object whole; on a disk a reader would find a file that is being written.
        written = f"{target}.{uuid.uuid4().hex}" if folder.is_local else target
        folder.filesystem.create_dir(folder.child(FOLDER), recursive=True)
        with folder.filesystem.open_output_stream(written) as file:
            file.write(record)
        if written != target:
            folder.filesystem.move(written, target)
    except Exception as error:  # a source that cannot be written is counted again each time
        degrade(
            logger, "the count of batches cannot be kept beside the source: %s", error, level=logging.INFO
        )


def _checked(record: object, key: str, limits: Limits) -> int:
    """Return the count of an untrusted record.

    Raises:
        SourceError: It is not of this name, not whole, or not possible.
    """
    if not isinstance(record, dict) or record.keys() != {"of", "batches", "digest"}:
        raise SourceError("it must be a record of 'of', 'batches' and 'digest'")
    batches = integer("batches", record["batches"], error=SourceError)
    if (record["of"], record["digest"]) != (key, _digest(key, batches)):
        raise SourceError(f"its digest is not that of {batches} batches under this name")
    if not limits.least <= batches <= limits.most:
        raise SourceError(
            f"batches must be between {limits.least} and {limits.most} for this source and budget, "
            f"got {batches}"
        )
    return batches


def _digest(key: str, batches: int) -> str:
    return hashlib.blake2b(f"{key}\n{batches}".encode(), digest_size=16).hexdigest()
