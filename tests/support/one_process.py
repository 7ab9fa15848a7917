"""What a run must have trained, by one process that nothing disturbs."""

from raypack.batching.options import TokenBatchOptions
from raypack.batching.rank.consolidated import ConsolidatedTokenBatchState
from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.batching.sequence.rank_steps import commit_examples
from raypack.batching.steps.planner import StepPlanner
from raypack.collate import PackedBatch
from raypack.collate.loss import next_token_loss_sum
from raypack.train.elastic.deal_starts import rank_sampler
from tests.support.running import BATCHES, BUDGET


def planner_of(source, **more):
    """Return the planner of a run of `tests.support.running.recipe_of`."""
    return StepPlanner(
        source.fingerprint,
        source.lengths,
        TokenBatchOptions(BUDGET),
        batches_per_step=BATCHES,
        seed=3,
        supervised=source.supervised,
        **more,
    )


def train_all(model, optimizer, source, planner):
    """Train all steps that are left; yield the index of each."""
    for step in planner.steps(0, 10**6):
        train_step(model, optimizer, source, step.batches)
        yield step.index


def train_step(model, optimizer, source, plans):
    """Train one step of some batches: the mean loss over all their supervised tokens."""
    supervised = sum(int(source.supervised[plan.indices].sum()) for plan in plans)
    for plan in plans:
        (loss_of(model, source, plan) / supervised).backward()
    optimizer.step()
    optimizer.zero_grad()


def loss_of(model, source, plan):
    """Return the summed loss of one batch."""
    ids, lengths, labels = source.take_flat(plan.indices)
    batch = PackedBatch.from_flat(ids, lengths, labels=labels)
    return next_token_loss_sum(model(batch), batch.labels)


def rank_steps(source, recipe, attempts):
    """Yield the batches of each step under the rank deal, resharded between the worlds of the ledger."""
    remaining, epoch = None, 0
    for attempt in attempts:
        world, micros = attempt.world_size, -(-recipe.batches_per_step // attempt.world_size)
        if remaining is None:
            samplers = [rank_sampler(recipe, source, None, rank, world) for rank in range(world)]
        else:
            samplers = [
                StatefulTokenBatchSampler.reshard(remaining, rank, world, source.lengths)
                for rank in range(world)
            ]
        left = attempt.steps
        while left:
            ranks = [sampler.plans(0, micros) for sampler in samplers]
            plans = [plan for plans in ranks for plan in plans]
            if not plans:
                epoch += 1
                for sampler in samplers:
                    sampler.start_epoch(epoch)
                continue
            for sampler, mine in zip(samplers, ranks, strict=True):
                commit_examples(sampler, sum(map(len, mine)))
            left -= 1
            yield plans
        remaining = ConsolidatedTokenBatchState.consolidate(s.state() for s in samplers)
