"""Whole lives of a run, without Ray: any source, worlds, read-ahead, deaths and epochs; exactly once."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from raypack.report import verify
from raypack.source import write_source
from raypack.train import PackedData
from tests.conftest import documents_table
from tests.train.local_run import Attempt, patch

BUDGET = 16


@pytest.fixture(autouse=True)
def local(monkeypatch):
    patch(monkeypatch)


@st.composite
def lives(draw):
    lengths = draw(st.lists(st.one_of(st.integers(1, BUDGET), st.just(BUDGET), st.just(1)), max_size=40))
    size = draw(st.integers(1, 7))
    return {
        "lengths": lengths,
        "labels": draw(st.booleans()),
        "recipe": {
            "maximum_tokens": BUDGET,
            "maximum_examples": draw(st.sampled_from([None, 1, 3])),
            "layout": draw(st.sampled_from(["packed", "padded"])),
            "batches_per_step": size,
            "seed": draw(st.sampled_from([None, 0, 9])),
            "shuffle": draw(st.sampled_from([None, "block"])),
        },
        "epochs": draw(st.integers(1, 3)),
        "attempts": draw(
            st.lists(
                st.fixed_dictionaries(
                    {
                        "world": st.integers(1, 5),
                        "slack": st.sampled_from([None, -3, 0, 1, 5]),
                        "steps": st.integers(0, 12),
                        "lost": st.integers(0, 3),
                        "dies_at": st.integers(0, 12),
                    }
                ),
                max_size=5,
            )
        ),
    }


def train_step(steps, trained):
    """Take one step on every rank; return False at the run's end."""
    taken = [next(one, None) for one in steps]
    if any(step is None for step in taken):
        assert all(step is None for step in taken)
        return False
    assert len({(s.index, s.epoch, s.micro_batches, s.supervised_tokens, s.real_tokens) for s in taken}) == 1
    supervised, tokens = 0, 0
    for step in taken:
        count = 0
        for batch in step:
            count += 1
            assert batch.plan.token_slots <= BUDGET
            trained.append((step.epoch, batch.indices.tolist()))
            supervised += int((batch.labels != -100).sum())
            tokens += batch.plan.real_tokens
        assert count == step.micro_batches
    assert supervised == taken[0].supervised_tokens
    assert tokens == taken[0].real_tokens
    for step in taken:
        step.commit()
    return True


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(lives())
def test_each_example_is_trained_once_an_epoch_in_the_lineage_whatever_happens(life):
    with tempfile.TemporaryDirectory() as name:
        live(Path(name), life)


def live(folder, life):
    source = write_source(str(folder / "source"), [documents_table(life["lengths"], labels=life["labels"])])
    checkpoint, lineage, reports = None, [], 0
    ends = [{"world": 2, "slack": None, "steps": 10**6, "lost": 0, "dies_at": -1}]
    for attempt in life["attempts"] + ends:
        micro = -(-life["recipe"]["batches_per_step"] // attempt["world"])
        ahead = None if attempt["slack"] is None else max(1, micro + attempt["slack"])
        recipe = PackedData(
            source=source.path, backend="direct", epochs=life["epochs"], ahead=ahead, **life["recipe"]
        )
        with Attempt(recipe, source, attempt["world"], checkpoint) as run:
            steps = [iter(loader) for loader in run.loaders]
            trained, going = [], True
            for step in range(attempt["steps"]):
                if step == attempt["dies_at"]:
                    run.actor.die()
                going = going and train_step(steps, trained)
                if not going:
                    break
            reports += 1
            checkpoint = run.save(folder, f"{reports:032x}")
            lineage += trained
            for _ in range(attempt["lost"]):  # steps after the last checkpoint are computed again
                going = going and train_step(steps, [])
        audit = verify(checkpoint)
        assert audit.ok, audit.findings
    for epoch in range(life["epochs"]):
        got = sorted(i for e, indices in lineage if e == epoch for i in indices)
        assert got == list(range(len(life["lengths"])))
    if life["lengths"]:
        assert [e.complete for e in audit.epochs] == [True] * life["epochs"]
