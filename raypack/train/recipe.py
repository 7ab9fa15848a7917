"""The recipe of a run as the train function and the driver have it: the record, and what asks a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.train import ScalingConfig

from raypack.checkpoint.recipe import Pace, Recipe
from raypack.train.counting import count_steps
from raypack.train.driver.need import Need
from raypack.train.driver.resources import check_resources

__all__ = ["Pace", "PackedData"]


@dataclass(frozen=True)
class PackedData(Recipe):
    """How a source is packed, ordered, dealt and streamed.

    Args:
        source: Path or URI of a prepared source that every node sees, or an `ArrowSource`.
        maximum_tokens: Budget of a batch in token slots.
        maximum_examples: Most examples in a batch; None is no limit.
        layout: ``packed`` (one flat row, documents isolated) or ``padded`` (one document a row).
        deal: ``global``: steps are planned for all ranks together and dealt to them, so that they
            hold the same examples at any world size. ``rank``: each rank has its shard of the order
            and packs batches of its own; ranks that finish an epoch early take part with empty ones.
        batches_per_step: Batches of an optimizer step over all ranks. None takes the number of
            workers of the first start (the largest, if a range) and keeps it at every later size.
        tokens_per_step: Instead of it, token slots of a step; rounded up to whole batches.
        packing: ``best_fit``: each window of the order is packed as full as it can be. ``greedy``: the
            longest prefix of the order that fits, nothing pulled forward; the only packing of
            ``deal="rank"``. None is best fit, and greedy where ranks deal for themselves.
        window: Examples of a window of best fit. None takes the power of two that holds 2,000 budgets
            or more at the mean length. Must be None under greedy packing.
        shuffle: ``full``: one shuffle of all examples. ``block``: blocks of neighbours are shuffled, and
            examples within a window of some blocks. None is full for a source on a local disk, and block
            where an example costs the reading of many: in an object store, and in an index of Parquet.
        attention_cost: Weights (linear, quadratic) of the balance over ranks; see `AttentionCost`.
        seed: Seed of the order; None is source order.
        epochs: Epochs of the run.
        max_steps: Optimizer steps after which the run ends, if it has not before; None is no limit.
        ahead: Micro-batches that a rank's stream may be ahead of what it has committed; None takes
            four blocks and at least two steps; less than one step is raised to one.
        backend: ``ray_data``, or ``direct``: a thread in the train process, without Ray Data.

    Raises:
        SamplerError: A value is out of range.
        SourceError: The source lies in the working directory of a Ray job, which vanishes with the job.
        TypeError: A value is of a wrong type.
    """

    def count_steps(self, batches_per_step: int | None = None) -> int:
        """Return the number of optimizer steps of the whole run, exactly; for schedules made up front.

        Counted once and then read from beside the source's manifest (where that can be written). Some
        millions of examples a second on a core; with Ray started, on all of the cluster.

        Args:
            batches_per_step: Batches of a step where the recipe leaves that to the number of workers.

        Raises:
            SamplerError: Neither recipe nor argument gives the batches of a step, or ``deal`` is ``rank``.
            SourceError: The source cannot be opened.
        """
        return count_steps(self, batches_per_step)

    def check(self, scaling_config: ScalingConfig) -> None:
        """Refuse a run that could never start here: called in the driver, before ``fit``.

        Ray Train waits indefinitely for workers that fit on no node, and a reader that gets no CPU is
        noticed only when the workers run. Joins or starts Ray, as ``fit`` does. Where an autoscaler may
        add what is missing, and where others hold it now, there is a warning. `RaypackCallback` does the
        same by itself for the recipes in ``train_loop_config``.

        Args:
            scaling_config: What the trainer is given; of an elastic range, the least must fit, and as many
                workers as fit must leave CPUs for their readers.

        Raises:
            ResourceError: The cluster can never hold the workers and their readers; it says what would fit.
        """
        if not isinstance(scaling_config, ScalingConfig):
            raise TypeError(
                f"scaling_config must be a ray.train.ScalingConfig, got {type(scaling_config).__name__}"
            )
        need = Need.of(scaling_config, [self])
        if need.most and not ray.is_initialized():
            ray.init()
        check_resources(need)


def recipes_in(values: Any) -> list[PackedData]:
    """Return the recipes that lie in a configuration, at any depth of dicts, lists and tuples."""
    if isinstance(values, PackedData):
        return [values]
    if isinstance(values, Mapping):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return []
    return [recipe for value in values for recipe in recipes_in(value)]
