"""What a chaotic run must have trained, by one process: the plan of its ledger, without any disturbance."""

import torch

from raypack.batching.steps.planner import StepPlanner
from tests.support.one_process import rank_steps, train_step
from tests.support.train_functions import TinyTransformer


def trained_by_one(source, plan, recipe, attempts):
    """Return the parameters after all steps, each step's batches in one process."""
    model = TinyTransformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps = _global(source, recipe) if plan["deal"] == "global" else rank_steps(source, recipe, attempts)
    for plans in steps:
        train_step(model, optimizer, source, plans)
    return model.state_dict()


def _global(source, recipe):
    """The steps of both epochs: the same whatever happened."""
    for epoch in range(recipe.epochs):
        planner = StepPlanner(
            source.fingerprint,
            source.lengths,
            recipe.options,
            batches_per_step=recipe.batches_per_step,
            seed=recipe.seed,
            epoch=epoch,
        )
        for step in planner.steps(0, 10**6):
            yield step.batches
