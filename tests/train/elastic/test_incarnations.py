"""Whole lives of a run, without Ray: any source, worlds, read-ahead, deaths and epochs; exactly once."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from raypack.audit import verify
from raypack.source import write_source
from raypack.train import PackedData
from tests.conftest import documents_table
from tests.support.local_run import Attempt, patch

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
            **draw(
                st.just({"packing": "greedy"})
                | st.fixed_dictionaries({"window": st.sampled_from([None, 1, 5, 16])})
            ),
        },
        "refuses": {
            "skip": draw(st.sets(st.integers(0, 30), max_size=3)),
            "retry": draw(st.sets(st.integers(0, 30), max_size=3)),
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
                        "loose": st.booleans(),
                        "change": st.fixed_dictionaries(
                            {},
                            optional={
                                "batches_per_step": st.integers(1, 7),
                                "maximum_tokens": st.sampled_from([BUDGET, BUDGET + 5, 3 * BUDGET]),
                            },
                        ),
                    }
                ),
                max_size=5,
            )
        ),
    }


def train_steps(run, steps, count, lineage, refuses, *, dies_at=-1, loose=False):
    """Train ``count`` steps on every rank, or fewer at the run's end; the planner dies before one of them.

    Ranks go step by step together, as under DDP, or, ``loose``, each by itself and one after another.
    """
    numbers = range(count)
    turns = ((k, [one]) for one in steps for k in numbers) if loose else ((k, steps) for k in numbers)
    sums = {}
    for number, ranks in turns:
        if number == dies_at:
            run.actor.die()
        taken = [step for one in ranks if (step := next(one, None)) is not None]
        assert len(taken) in (0, len(ranks))
        for step in taken:
            train(step, lineage, sums, refuses)
        if not taken and not loose:
            break
    for (_, _, supervised, tokens), got in sums.items():
        assert got == [supervised, tokens]


def train(step, lineage, sums, refuses):
    """Take all of a rank's part of a step and add up what the step must hold over all ranks."""
    total = sums.setdefault((step.epoch, step.index, step.supervised_tokens, step.real_tokens), [0, 0])
    if step.index in refuses["retry"]:
        next(iter(step))
        step.retry()
    batches = list(step)
    assert len(batches) == step.micro_batches
    for batch in batches:
        assert batch.plan.token_slots <= refuses["budget"]
        lineage.append((step.epoch, batch.indices.tolist()))
        total[0] += int((batch.labels != -100).sum())
        total[1] += batch.plan.real_tokens
    if step.index in refuses["skip"]:
        step.skip()
    else:
        step.commit()


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(lives())
def test_each_example_is_trained_once_an_epoch_in_the_lineage_whatever_happens(life):
    with tempfile.TemporaryDirectory() as name:
        live(Path(name), life)


def live(folder, life):
    source = write_source(str(folder / "source"), [documents_table(life["lengths"], labels=life["labels"])])
    checkpoint, lineage, reports = None, [], 0
    ends = [{"world": 2, "slack": None, "steps": 10**6, "lost": 0, "dies_at": -1, "loose": False}]
    terms = dict(life["recipe"])
    for attempt in life["attempts"] + ends:
        terms |= attempt.get("change", {})
        micro = -(-terms["batches_per_step"] // attempt["world"])
        ahead = None if attempt["slack"] is None else max(1, micro + attempt["slack"])
        recipe = PackedData(source=source.path, backend="direct", epochs=life["epochs"], ahead=ahead, **terms)
        with Attempt(recipe, source, attempt["world"], checkpoint) as run:
            steps = [iter(loader) for loader in run.loaders]
            refuses = {**life["refuses"], "budget": terms["maximum_tokens"]}
            trained = []
            how = {"dies_at": attempt["dies_at"], "loose": attempt["loose"]}
            train_steps(run, steps, attempt["steps"], trained, refuses, **how)
            reports += 1
            checkpoint = run.save(folder, f"{reports:032x}")
            lineage += trained
            train_steps(run, steps, attempt["lost"], [], refuses)  # in no checkpoint: computed again
        audit = verify(checkpoint)
        assert audit.consistent, audit.findings
    assert audit.reached == bool(life["lengths"])
    for epoch in range(life["epochs"]):
        got = sorted(i for e, indices in lineage if e == epoch for i in indices)
        assert got == list(range(len(life["lengths"])))
    if life["lengths"]:
        skipped = {step for step in life["refuses"]["skip"] if step < sum(e.steps for e in audit.epochs)}
        assert {n for e in audit.epochs for n in e.refused.numbers} == skipped
        assert sum(e.trained + e.refused.receipt.examples for e in audit.epochs) == life["epochs"] * len(
            life["lengths"]
        )
        assert [e.complete for e in audit.epochs] == [True] * life["epochs"]
