"""The same steps on 1, 2, 3 and 5 workers: parameters agree to 1e-9, through an epoch's end.

pytest -m slow tests/train/elastic/test_world_sizes.py
"""

import pytest
import torch

from raypack.audit import verify
from raypack.checkpoint.locate import last_checkpoint, open_path
from raypack.source import write_source
from tests.conftest import documents_table, long_tailed
from tests.support import train_functions
from tests.support.local_ray import local_ray
from tests.support.running import BATCHES, CPUS, fit, recipe_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]
STEPS = 61
WORLDS = (1, 2, 3, 5)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_ray(train_functions, cpus=CPUS):
        yield


@pytest.mark.parametrize(
    "terms", [{}, {"layout": "padded", "packing": "greedy"}], ids=["best_fit", "greedy-padded"]
)
def test_parameters_after_61_steps_are_the_same_on_any_number_of_workers(tmp_path, terms):
    source = write_source(str(tmp_path / "source"), [documents_table(long_tailed(1201, seed=8), labels=True)])
    recipe = recipe_of(source, epochs=2, max_steps=STEPS, **terms)
    assert all(number % world for number in (STEPS, BATCHES) for world in WORLDS[1:])
    models, tokens = [], set()
    for world in WORLDS:
        fit(train_functions.train, tmp_path, recipe, world, name=f"world-{world}")
        audit = verify(tmp_path / f"storage/world-{world}")
        assert audit.ok, audit.findings
        assert sum(epoch.steps for epoch in audit.epochs) == STEPS
        tokens.add(tuple(epoch.tokens for epoch in audit.epochs))
        filesystem, path = open_path(tmp_path / f"storage/world-{world}")
        models.append(torch.load(last_checkpoint(filesystem, path) + "/model.pt"))
    assert len(tokens) == 1
    for other in models[1:]:
        for name, value in models[0].items():
            assert torch.allclose(value, other[name], rtol=0, atol=1e-9), name
