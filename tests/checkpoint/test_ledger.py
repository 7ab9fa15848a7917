import json

import pytest

from raypack.batching.options import TokenBatchOptions
from raypack.checkpoint.ledger import Attempt, EpochEntry, Ledger
from raypack.errors import CheckpointError
from raypack.sampling.receipt import Receipt


def entry(epoch, steps, examples=1):
    receipt = Receipt(examples, examples * 10, examples * 7)
    return EpochEntry(epoch=epoch, steps=steps, receipt=receipt, batches=examples, observed=examples // 2)


def attempt(number, first, steps, world=2):
    return Attempt(
        number=number,
        world_size=world,
        first_step=first,
        steps=steps,
        batches_per_step=4,
        options=TokenBatchOptions(64),
    )


LEDGER = Ledger((attempt(0, 0, 5), attempt(1, 5, 4, 3)), (entry(0, 6, 60), entry(1, 3, 30)))


def test_a_ledger_comes_back_from_json_as_it_was():
    assert Ledger.from_dict(json.loads(json.dumps(LEDGER.to_dict()))) == LEDGER


def test_a_running_attempt_adds_to_the_epoch_it_went_on_in():
    grown = LEDGER.extended(attempt(2, 9, 4), [entry(1, 2, 20), entry(2, 2, 20)])
    assert [e.steps for e in grown.epochs] == [6, 5, 2]
    assert grown.epochs[1].receipt == Receipt(50, 500, 350)
    assert (grown.epochs[1].batches, grown.epochs[1].observed) == (50, 25)
    assert grown.steps == 13
    assert LEDGER.steps == 9


def test_batches_and_what_was_observed_of_them_add_up_over_ranks():
    whole = EpochEntry.over_ranks([entry(0, 4, 10), entry(0, 4, 6)])
    assert (whole.steps, whole.batches, whole.observed) == (4, 16, 8)


def test_no_more_batches_are_observed_than_there_are():
    values = LEDGER.to_dict()
    values["epochs"][1]["observed"] = 31
    with pytest.raises(CheckpointError, match=r"epoch\.observed must be at most 30, the batches, got 31"):
        Ledger.from_dict(values)


def test_an_attempt_without_steps_leaves_no_trace():
    assert Ledger().extended(attempt(0, 0, 0), []) == Ledger()


@pytest.mark.parametrize(
    ("attempts", "epochs", "message"),
    [
        ((attempt(0, 1, 5),), (entry(0, 5),), "must begin at step 0, got 1"),
        ((attempt(0, 0, 5), attempt(1, 4, 2)), (entry(0, 7),), "must begin at step 5, got 4"),
        ((attempt(0, 0, 5),), (entry(0, 4),), "hold 5 steps, the epochs 4"),
        ((attempt(0, 0, 5),), (entry(1, 5),), "epochs must be 0, 1, 2"),
    ],
)
def test_a_ledger_that_contradicts_itself_is_refused(attempts, epochs, message):
    with pytest.raises(CheckpointError, match=message):
        Ledger(attempts, epochs)


@pytest.mark.parametrize("junk", [None, [], {"attempts": []}, {"attempts": 1, "epochs": []}, {"x": 1}])
def test_what_is_no_ledger_is_refused(junk):
    with pytest.raises(CheckpointError, match="ledger"):
        Ledger.from_dict(junk)
