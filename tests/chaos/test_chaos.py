"""Chaos, one seed and both deals in short; twenty seeds with lost nodes in the long run.

pytest -m slow tests/chaos
"""

import pytest

from tests.chaos.plan import plan_of
from tests.chaos.run import Nodes, run_plan

pytestmark = pytest.mark.ray
STEPS = 100


@pytest.fixture(scope="module")
def head():
    nodes = Nodes(0)
    yield nodes
    nodes.close()


def test_a_run_that_is_killed_at_random_moments_trains_each_example_once(head, tmp_path):
    outcome = run_plan(plan_of(0, steps=STEPS, nodes=False, kills=3), tmp_path, head)
    assert outcome.kills
    assert not outcome.findings


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_runs_that_lose_nodes_too_train_each_example_once(seed, tmp_path):
    nodes = Nodes(2)
    try:
        outcome = run_plan(plan_of(seed, steps=STEPS, nodes=True), tmp_path, nodes)
    finally:
        nodes.close()
    assert outcome.kills
    assert not outcome.findings
