"""How many optimizer steps a run has, counted exactly and only once.

Windows are packed independently, so they are counted side by side: by Ray tasks where Ray runs and
there is much to count, else in this process. The count of an epoch's batches is kept beside the
source's manifest, under a name that covers all that it depends on.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING

import ray

from raypack.arguments import integer
from raypack.batching.step_planner import StepPlanner
from raypack.batching.step_state import StepPlannerState
from raypack.batching.windows import WindowPacker
from raypack.errors import SamplerError
from raypack.sampling.order import EpochOrder
from raypack.source import ArrowSource, open_source
from raypack.source.location import locate

if TYPE_CHECKING:
    from raypack.train.recipe import PackedData

logger = logging.getLogger(__name__)

FOLDER = "raypack-counts"
_WORTH_TASKS = 4_000_000
_MOST_TASKS = 64


def count_steps(recipe: PackedData, batches_per_step: int | None) -> int:
    """Return how many optimizer steps a recipe's run has; see `PackedData.count_steps`."""
    if recipe.deal != "global":
        raise SamplerError(
            "count_steps needs deal='global': with deal='rank' the number of steps depends on the workers "
            "that a run has at each time; follow loader.progress instead"
        )
    size = recipe.step_batches if batches_per_step is None else batches_per_step
    if size is None:
        raise SamplerError(
            "count_steps needs batches_per_step: the recipe leaves it to the number of workers of the first "
            "start; give it in the recipe, or as count_steps(batches_per_step=...)"
        )
    size = integer("batches_per_step", size, minimum=1)
    source = open_source(recipe.source_path)
    steps = batches = 0
    for epoch in range(recipe.epochs):
        if epoch == 0 or recipe.seed is not None:  # in source order all epochs are equal
            batches = _batches(recipe, source, epoch)
        steps += -(-batches // size)
        if recipe.max_steps is not None and steps >= recipe.max_steps:
            return recipe.max_steps
    return steps


def _batches(recipe: PackedData, source: ArrowSource, epoch: int) -> int:
    planner = StepPlanner(
        source.fingerprint,
        source.lengths,
        recipe.options,
        batches_per_step=1,
        packing=recipe.packing_kind,
        window=recipe.window,
        seed=recipe.seed,
        epoch=epoch,
        shuffle=recipe.order_of(source),
    )
    key = _key(planner)
    known = _read(source, key)
    if known is None:
        known = _count(planner, recipe.source_path)
        _write(source, key, known)
    return known


def _count(planner: StepPlanner, source_path: str) -> int:
    total, window = len(planner.lengths), planner.window
    if window is None or total < _WORTH_TASKS or not ray.is_initialized():
        return planner.remaining_batches()
    tasks = min(_MOST_TASKS, max(1, int(ray.cluster_resources().get("CPU", 1))))
    part = -(-total // (tasks * window)) * window
    # No CPU is reserved: called from a train function, tasks that wait for one might wait for ever.
    remote = ray.remote(_count_part).options(num_cpus=0, scheduling_strategy="SPREAD")
    state = planner.state()
    counts = [remote.remote(state, window, source_path, first, part) for first in range(0, total, part)]
    return sum(ray.get(counts))


def _count_part(state: StepPlannerState, window: int, source_path: str, first: int, part: int) -> int:
    source = open_source(source_path)
    order = EpochOrder(len(source), seed=state.seed, epoch=state.epoch, shuffle=state.shuffle)
    packer = WindowPacker(order, source.lengths, state.options, None, window=window)
    return packer.count_windows(first, min(first + part, len(source)))


def _key(planner: StepPlanner) -> str:
    """Return the digest of all that the number of batches depends on."""
    text = json.dumps(planner.state().to_dict(), sort_keys=True)
    return hashlib.blake2b(f"raypack count 1\n{text}".encode(), digest_size=16).hexdigest()


def _read(source: ArrowSource, key: str) -> int | None:
    try:
        folder = locate(source.path)
        with folder.filesystem.open_input_stream(folder.child(f"{FOLDER}/{key}.json")) as file:
            record = json.loads(file.read(1024))
        return integer("batches", record["batches"], minimum=0)
    except FileNotFoundError:
        return None
    except Exception as error:  # each file system has errors of its own, and the count can be made again
        logger.warning("the kept count %s is unreadable and made again: %s", key, error)
        return None


def _write(source: ArrowSource, key: str, batches: int) -> None:
    try:
        folder = locate(source.path)
        folder.filesystem.create_dir(folder.child(FOLDER), recursive=True)
        with folder.filesystem.open_output_stream(folder.child(f"{FOLDER}/{key}.json")) as file:
            file.write(json.dumps({"batches": batches}).encode())
    except Exception as error:  # a source that cannot be written is counted again each time
        logger.info("the count of batches cannot be kept beside the source: %s", error)
