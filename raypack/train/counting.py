"""How many optimizer steps a run has, counted exactly and only once.

Windows are packed independently, so they are counted side by side: by Ray tasks where Ray runs and
there is much to count, else in this process. The count of a whole epoch's batches is kept beside the
source's manifest, see `kept_counts`. A run whose budget or whose steps have changed is counted from where
it stands.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import ray

from raypack.arguments import integer
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.state import StepPlannerState
from raypack.batching.steps.windows import WindowPacker
from raypack.errors import SamplerError
from raypack.sampling.orders.epoch_order import EpochOrder
from raypack.source import ArrowSource, open_source
from raypack.train.kept_counts import keep_count, kept_count, limits_of

if TYPE_CHECKING:
    from raypack.checkpoint.ledger import Attempt
    from raypack.train.recipe import PackedData

_WORTH_TASKS = 4_000_000
_MOST_TASKS = 64


def count_steps(recipe: PackedData, batches_per_step: int | None) -> int:
    """Return how many optimizer steps a recipe's run has; see `PackedData.count_steps`."""
    if recipe.deal != "global":
        raise uncountable()
    size = recipe.step_batches if batches_per_step is None else batches_per_step
    if size is None:
        raise SamplerError(
            "count_steps needs batches_per_step: the recipe leaves it to the number of workers of the first "
            "start; give it in the recipe, or as count_steps(batches_per_step=...)"
        )
    size = integer("batches_per_step", size, minimum=1)
    source = open_source(recipe.source_path)
    planner = StepPlanner(
        source.fingerprint,
        source.lengths,
        recipe.options,
        batches_per_step=size,
        packing=recipe.packing_kind,
        window=recipe.window,
        seed=recipe.seed,
        shuffle=recipe.order_of(source),
    )
    return _sum_epochs(recipe, source, planner.state(), range(recipe.epochs), recipe.max_steps)


def count_run(
    recipe: PackedData, source: ArrowSource, planner: StepPlanner, attempts: Sequence[Attempt], done: int
) -> int:
    """Return how many optimizer steps a run has that has begun: those done, and what is left as planned now.

    Args:
        recipe: What holds from here on.
        source: The opened source.
        planner: The present epoch's planner, at the boundary after the last committed step.
        attempts: Those before the present one, whose terms may have been others.
        done: Steps committed in the lineage, in all epochs.
    """
    most = None if recipe.max_steps is None else max(0, recipe.max_steps - done)
    state, left = planner.state(), 0
    if state.epoch < recipe.epochs and most != 0:
        left = _left_of_epoch(recipe, source, planner, attempts, done)
    later = range(state.epoch + 1, recipe.epochs)
    if most is None or left < most:
        left += _sum_epochs(recipe, source, state, later, None if most is None else most - left)
    return done + (left if most is None else min(left, most))


def uncountable() -> SamplerError:
    """Return the error for a deal whose steps cannot be counted in advance."""
    return SamplerError(
        "count_steps needs deal='global': with deal='rank' the number of steps depends on the workers "
        "that a run has at each time; follow loader.progress instead"
    )


def _sum_epochs(
    recipe: PackedData, source: ArrowSource, state: StepPlannerState, epochs: range, most: int | None
) -> int:
    """Return the steps of whole epochs, at most ``most``: those beyond are not counted."""
    steps = batches = 0
    for epoch in epochs:
        if epoch == epochs[0] or state.seed is not None:  # in source order all epochs are equal
            batches = _epoch_batches(recipe, source, state, epoch)
        steps += -(-batches // state.batches_per_step)
        if most is not None and steps >= most:
            return most
    return steps


def _left_of_epoch(
    recipe: PackedData, source: ArrowSource, planner: StepPlanner, attempts: Sequence[Attempt], done: int
) -> int:
    """Return the steps that the present epoch has left.

    The kept count of the whole epoch gives it if the whole epoch was planned as it is now.
    """
    size, began = planner.batches_per_step, done - planner.cursor.steps
    terms = [(a.options, a.batches_per_step) for a in attempts if a.first_step + a.steps > began]
    if all(one == (planner.options, size) for one in terms):
        whole = _epoch_batches(recipe, source, planner.state(), planner.epoch)
        return -(-whole // size) - planner.cursor.steps
    return -(-_count(planner, recipe.source_path) // size)


def _epoch_batches(recipe: PackedData, source: ArrowSource, state: StepPlannerState, epoch: int) -> int:
    """Return the batches of a whole epoch under a state's terms, as kept or counted now."""
    planner = StepPlanner(
        state.source_id,
        source.lengths,
        state.options,
        batches_per_step=1,
        packing=state.packing,
        window=state.window,
        seed=state.seed,
        epoch=epoch,
        shuffle=state.shuffle,
    )
    key = _key(planner)
    known = kept_count(source.path, key, limits_of(len(source), source.manifest.tokens, planner))
    if known is None:
        known = _count(planner, recipe.source_path)
        keep_count(source.path, key, known)
    return known


def _count(planner: StepPlanner, source_path: str) -> int:
    """Return the batches from a planner's boundary to its epoch's end."""
    first, window = planner.cursor.position, planner.window
    total = len(planner.lengths)
    if window is None or total - first < _WORTH_TASKS or not ray.is_initialized():
        return planner.remaining_batches()
    tasks = min(_MOST_TASKS, max(1, int(ray.cluster_resources().get("CPU", 1))))
    part = math.ceil((total - first) / (tasks * window)) * window
    # No CPU is reserved: called from a train function, tasks that wait for one might wait for ever.
    remote = ray.remote(_count_part).options(num_cpus=0, scheduling_strategy="SPREAD")
    state = planner.state()
    counts = [remote.remote(state, window, source_path, start, part) for start in range(first, total, part)]
    return sum(ray.get(counts)) - state.cursor.batches


def _count_part(state: StepPlannerState, window: int, source_path: str, first: int, part: int) -> int:
    """Return the batches of the windows that begin in a part; those before the boundary are among them."""
    source = open_source(source_path)
    order = EpochOrder(len(source), seed=state.seed, epoch=state.epoch, shuffle=state.shuffle)
    packer = WindowPacker(
        order,
        source.lengths,
        state.options,
        None,
        window=window,
        repacked=state.repacked,
        position=state.cursor.position,
    )
    return packer.count_windows(first, min(first + part, len(source)))


def _key(planner: StepPlanner) -> str:
    """Return the digest of all that the number of batches depends on."""
    text = json.dumps(planner.state().to_dict(), sort_keys=True)
    return hashlib.blake2b(f"raypack count 2\n{text}".encode(), digest_size=16).hexdigest()
