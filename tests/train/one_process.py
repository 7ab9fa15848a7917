"""What a run must have trained, by one process that nothing disturbs."""

from raypack.batching.options import TokenBatchOptions
from raypack.batching.step_planner import StepPlanner
from raypack.collate import PackedBatch
from raypack.collate.loss import next_token_loss_sum
from tests.train.running import BATCHES, BUDGET


def planner_of(source, **more):
    """Return the planner of a run of `tests.train.running.recipe_of`."""
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
