"""Checks, before a replay, that a record asks no more of it than the open source allows."""

from __future__ import annotations

from raypack.audit.replay.global_replay import most_examples
from raypack.batching.steps.state import StepPlannerState
from raypack.checkpoint.run_state import RunState
from raypack.errors import CheckpointError

MOST_IN_A_BATCH = 1 << 24
"""Examples that one batch may hold: their indices take 128 MiB."""
_MOST_RANKS = 1 << 16
_EXAMPLES_A_RANK = 64


def check_bounds(state: RunState) -> None:
    """Refuse what would take more time or memory than the source's size explains.

    Args:
        state: A state whose source is open, so that its number of examples is the source's.

    Raises:
        CheckpointError: An attempt has batches or ranks that no run can have had.
    """
    plan, attempts = state.plan, state.ledger.attempts
    every = [plan.options, *(attempt.options for attempt in attempts)]
    if isinstance(plan, StepPlannerState):
        every += [part.options for part in plan.repacked]
    for options in every:
        if most_examples(options, plan.source_length) > MOST_IN_A_BATCH:
            raise CheckpointError(
                f"a batch of {options.maximum_tokens} tokens may hold more than {MOST_IN_A_BATCH} examples; "
                "no run has such a budget"
            )
    if state.deal == "rank":
        _check_worlds(state)


def _check_worlds(state: RunState) -> None:
    """Each rank of each attempt is trained again, and costs as much as some examples do."""
    ranks = sum(attempt.world_size for attempt in state.ledger.attempts)
    examples = state.plan.source_length * len(state.ledger.epochs)
    most = _MOST_RANKS + examples // _EXAMPLES_A_RANK
    if ranks > most:
        raise CheckpointError(
            f"the ledger's attempts have {ranks} data ranks together, more than the {most} that "
            f"{examples} examples in {len(state.ledger.epochs)} epochs explain"
        )
