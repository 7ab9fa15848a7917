"""All stateful classes below the Ray layer go on after any stop."""

import numpy as np
import pytest

from raypack.batching import StatefulTokenBatchSampler, StepPlanner, TokenBatchOptions
from raypack.sampling import ConsolidatedSamplerState, StatefulShardSampler
from tests.support.resume_check import check_resume
from tests.support.worlds import consolidate, train, world

LENGTHS = np.random.default_rng(5).integers(1, 30, 57)
OPTIONS = TokenBatchOptions(60, maximum_examples=5)


def fresh(**options):
    return StatefulShardSampler("source", 57, rank=1, world_size=3, epoch=2, **options)


def resharded(**options):
    consolidated = consolidate(train(world(57, 4, **options), [7, 0, 3, 5]))
    return StatefulShardSampler.reshard(ConsolidatedSamplerState.from_dict(consolidated.to_dict()), 1, 3)


SHARDS = [
    lambda: fresh(),
    lambda: fresh(seed=8),
    lambda: fresh(seed=8, shuffle="block", tail="drop"),
    lambda: fresh(order=np.random.default_rng(1).permutation(57)),
    lambda: resharded(seed=8),
    lambda: StatefulShardSampler("source", 0),
]


@pytest.mark.parametrize("make", SHARDS)
def test_a_shard_sampler_goes_on_after_any_stop(make):
    def advance(sampler):
        sampler.rewind_uncommitted()
        indices = sampler.next_indices(2)
        if indices is None:
            return None
        sampler.commit(len(indices))
        return indices.tolist()

    outputs = check_resume(
        make, advance, StatefulShardSampler.from_state, prefetch=lambda sampler: sampler.next_indices(3)
    )
    assert outputs == -(-make().remaining // 2)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("make", SHARDS[:-1])
def test_a_token_batch_sampler_goes_on_after_any_stop(make, layout):
    options = TokenBatchOptions(60, maximum_examples=5, layout=layout)

    def advance(batches):
        batches.rewind_uncommitted()
        plan = batches.next_plan()
        if plan is not None:
            batches.commit(len(plan))
        return plan

    def prefetch(batches):
        batches.next_plan()
        batches.plans(1, 4)

    outputs = check_resume(
        lambda: StatefulTokenBatchSampler(make(), LENGTHS, options),
        advance,
        lambda state: StatefulTokenBatchSampler.from_state(state, LENGTHS),
        prefetch=prefetch,
    )
    assert outputs > 2


@pytest.mark.parametrize("packing", [{"packing": "greedy"}, {"window": 16}], ids=["greedy", "best_fit"])
@pytest.mark.parametrize("batches_per_step", [1, 4])
def test_a_step_planner_goes_on_after_any_stop(batches_per_step, packing):
    def make():
        return StepPlanner("source", LENGTHS, OPTIONS, batches_per_step=batches_per_step, seed=3, **packing)

    def advance(planner):
        steps = planner.steps(0, 1)
        if not steps:
            return None
        planner.commit(1)
        return steps[0].index, steps[0].batches

    outputs = check_resume(
        make,
        advance,
        lambda state: StepPlanner.from_state(state, LENGTHS, OPTIONS),
        prefetch=lambda planner: planner.steps(0, 3),
    )
    assert outputs > 2
