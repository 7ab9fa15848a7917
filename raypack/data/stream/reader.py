"""The reader of one rank: asks the planner for blocks, reads their tokens, yields them in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from raypack.batching.sequence.plan_block import PlanBlock
from raypack.errors import StreamError
from raypack.source import ArrowSource, open_source

logger = logging.getLogger(__name__)

_LOST_AFTER_S = 60.0

Block = TypeVar("Block")


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """What a reader needs; small, it travels to a Ray task."""

    source_path: str
    fingerprint: str
    planner: Any
    """Handle of the node's planner."""
    rank: int
    block_rows: int
    """Micro-batches a block."""


def read_blocks(spec: ReadSpec, load: Callable[[PlanBlock, ArrowSource], Block]) -> Iterator[Block]:
    """Yield the rank's blocks from micro-batch 0 of the attempt to the end of the run.

    A pure function of the spec: run again, it yields the same number of blocks in the same order;
    those that were committed meanwhile come out empty, since nobody will look at them.

    Args:
        spec: What to read.
        load: Reads the examples of a block's plans.

    Raises:
        StreamError: The source here is another one, or the planner stays lost.
    """
    source = open_source(spec.source_path)
    if source.fingerprint != spec.fingerprint:
        raise StreamError(
            f"the source at {spec.source_path} has the fingerprint {source.fingerprint} on the reader's "
            f"node, but {spec.fingerprint} on the train worker's: every node must see the same source"
        )
    first = 0
    asked = _ask(spec, first)
    while True:
        block = _answer(spec, first, asked)
        first += len(block)
        if len(block) == spec.block_rows:
            asked = _ask(spec, first)  # on its way while this block is read
        if len(block):
            yield load(block, source)
        if len(block) < spec.block_rows:
            return


def _ask(spec: ReadSpec, first: int) -> Any:
    return spec.planner.grant.remote(spec.rank, first, spec.block_rows)


def _answer(spec: ReadSpec, first: int, asked: Any) -> PlanBlock:
    """Wait for a grant; ask again while there is no credit, or while the planner is being restarted."""
    lost_since: float | None = None
    while True:
        try:
            block = ray.get(asked)
            lost_since = None
        except ray.exceptions.RayActorError as error:
            if lost_since is None:
                lost_since = time.monotonic()
                logger.warning("rank %d: the planner actor is lost, asked again: %s", spec.rank, error)
            if time.monotonic() - lost_since > _LOST_AFTER_S:
                raise StreamError(f"rank {spec.rank}: the planner actor is lost: {error}") from error
            time.sleep(0.2)
            block = None
        if block is not None:
            return block
        asked = _ask(spec, first)
