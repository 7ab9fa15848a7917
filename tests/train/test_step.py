"""A step without a cluster: its loss, its contexts, its rules."""

from contextlib import nullcontext, suppress
from itertools import chain

import numpy as np
import pytest
import torch

from raypack.batching.sequence.plan_block import RowMeta
from raypack.batching.steps.step import StepCursor
from raypack.collate import PackedBatch
from raypack.collate.transfer import DevicePrefetcher
from raypack.data.stream.blocks import StreamRow
from raypack.errors import LoaderError, StreamError
from raypack.sampling.receipt import Receipt, receipt_key
from raypack.train.deals.deal import StepFacts
from raypack.train.deals.rows import Rows, plan_of
from raypack.train.receipt_accumulator import entry_of
from raypack.train.step import Step

KEY = receipt_key("s", 0)
SUPERVISED = 20


def row(micro, micros=3, indices=(0, 1)):
    lengths = np.array([3 + i for i in indices], np.int32)
    total = int(lengths.sum())
    meta = RowMeta(
        epoch=0,
        step=4,
        micro=micro,
        micros=micros,
        step_batches=5,
        step_supervised=SUPERVISED,
        step_tokens=30,
        step_imbalance=1_000_000,
        real_tokens=total,
        maximum_length=int(lengths.max(initial=0)),
        token_slots=total,
        end_position=50,
        end_batches=0,
    )
    return StreamRow(
        address=micro,
        meta=meta,
        indices=np.array(indices, np.int64),
        lengths=lengths,
        input_ids=np.arange(total, dtype=np.int32) % 11,
        labels=None,
    )


def facts(**more):
    values = {
        "epoch": 0,
        "step": 4,
        "micros": 3,
        "rows": 3,
        "batches": 5,
        "tokens": 30,
        "supervised": SUPERVISED,
        "end": StepCursor(5, 50, 0),
    }
    return StepFacts(**{**values, **more})


def to_batch(r):
    return PackedBatch.from_flat(r.input_ids, r.lengths, indices=r.indices, plan=plan_of(r))


def step(rows=None, commits=None, batches=None):
    rows = rows or [row(0), row(1, indices=(2,)), row(2, indices=())]
    return Step(
        index=9,
        world_size=2,
        facts=facts(),
        rows=rows if isinstance(rows, Rows) else Rows(iter(rows)),
        batches=batches or DevicePrefetcher(to_batch, None),
        on_commit=(commits if commits is not None else []).append,
    )


def test_a_step_tells_where_it_stands():
    one = step()
    assert (one.index, one.epoch, one.index_in_epoch, one.micro_batches) == (9, 0, 4, 3)
    assert (one.batches, one.real_tokens, one.supervised_tokens) == (5, 30, SUPERVISED)
    assert one.loss_scale == 2 / SUPERVISED


def test_commit_before_all_micro_batches_are_taken_is_refused_and_changes_nothing():
    commits = []
    one = step(commits=commits)
    batches = iter(one)
    next(batches)
    with pytest.raises(LoaderError, match="has 3 micro-batches on this rank, but only 1 were taken"):
        one.commit()
    assert not one.committed
    assert commits == []
    assert len(list(batches)) == 2
    one.commit()
    assert commits == [one]


def test_going_over_a_step_again_is_refused_not_empty():
    one = step()
    list(one)
    with pytest.raises(LoaderError, match="step 9 has given all of its micro-batches"):
        list(one)


def test_committing_twice_is_refused():
    one = step()
    list(one)
    one.commit()
    with pytest.raises(LoaderError, match="step 9 is committed already"):
        one.commit()


def test_a_batch_of_another_step_is_refused():
    one = step()
    list(one)
    with pytest.raises(LoaderError, match=r"step\.loss needs a batch of step 9"):
        one.loss(torch.zeros(1, 4, 11), to_batch(row(0)))


def test_what_is_no_batch_and_what_are_no_logits_is_named_with_what_to_give():
    one = step()
    batch = next(iter(one))
    with pytest.raises(TypeError, match=r"step\.sync needs the batch that the step gave.*got dict"):
        one.sync(None, batch.for_hf_sdpa())
    with pytest.raises(TypeError, match=r"logits must be a tensor, got dict.*\.logits"):
        one.loss({}, batch)
    with pytest.raises(AttributeError, match=r"no 'input_ids': .*'for batch in step'"):
        one.input_ids


def test_a_stream_that_ends_inside_a_step_is_an_error():
    one = step([row(0)])
    with pytest.raises(StreamError, match="ended inside step 9, after 1 micro-batches"):
        list(one)


def receipt_of(*groups):
    total = Receipt()
    for indices in groups:
        total += Receipt.of(KEY, np.array(indices, np.int64), sum(3 + i for i in indices))
    return total


@pytest.mark.parametrize("how", ["neither", "loss", "sync", "both"])
def test_each_batch_counts_once_however_it_is_trained(how):
    one, model = step(), torch.nn.Linear(2, 2)
    for batch in one:
        if how in ("sync", "both"):
            one.sync(model, batch)
        if how in ("loss", "both"):
            one.loss(torch.zeros(*batch.input_ids.shape, 11), batch)
    assert entry_of(KEY, [one.trained()]).receipt == receipt_of([0, 1], [2])


def test_a_step_that_is_begun_again_gives_the_same_batches_and_its_last_try_alone_counts():
    one = step()
    first = []
    for batch in one:
        one.loss(torch.zeros(*batch.input_ids.shape, 11), batch)
        first.append(batch)
    one.retry()
    again = []
    for batch in one:
        one.loss(torch.zeros(*batch.input_ids.shape, 11), batch)
        again.append(batch)
    assert [b.indices.tolist() for b in again] == [b.indices.tolist() for b in first]
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(again, first, strict=True))
    with pytest.raises(LoaderError, match="got one of another step"):
        one.loss(torch.zeros(*first[0].input_ids.shape, 11), first[0])
    entry = entry_of(KEY, [one.trained()])
    assert (entry.receipt, entry.refused.retries, entry.refused.steps) == (receipt_of([0, 1], [2]), 1, 0)


def test_a_step_can_be_begun_again_in_its_middle():
    one = step()
    taken = next(iter(one)).indices.tolist()
    one.retry()
    assert [batch.indices.tolist() for batch in one] == [taken, [2], []]
    one.commit()
    with pytest.raises(LoaderError, match="cannot be begun again"):
        one.retry()


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_skipped_step_counts_what_it_held_as_skipped_and_takes_the_rest_from_the_stream(taken):
    rows = Rows(iter([row(0), row(1, indices=(2,)), row(2, indices=()), row(0, indices=(9,))]))
    one = step(rows=rows)
    for _ in zip(range(taken), one, strict=False):
        pass
    ended = []
    one._on_commit = lambda step: ended.append(entry_of(KEY, [step.trained()]))
    one.skip()
    (entry,) = ended
    assert entry.receipt == Receipt()
    assert entry.refused.receipt == receipt_of([0, 1], [2])
    assert entry.refused.numbers == (one.index,)
    assert rows.take().indices.tolist() == [9]
    assert one.committed
    for end in (one.skip, one.commit):
        with pytest.raises(LoaderError, match="end a step once"):
            end()


def test_a_step_that_is_skipped_after_a_retry_counts_both():
    one, ended = step(), []
    one._on_commit = lambda step: ended.append(entry_of(KEY, [step.trained()]).refused)
    for batch in one:
        one.loss(torch.zeros(*batch.input_ids.shape, 11), batch)
    one.retry()
    one.loss(torch.zeros(1, 7, 11), next(iter(one)))
    one.skip()
    (refused,) = ended
    assert (refused.retries, refused.steps) == (1, 1)
    assert refused.receipt == receipt_of([0, 1], [2])  # all that it held, whatever went through the loss


class Counting:
    """Stands where DDP stands: counts how often gradients would be synchronised."""

    def __init__(self):
        self.quiet = 0

    def no_sync(self):
        from contextlib import contextmanager

        @contextmanager
        def context():
            self.quiet += 1
            yield

        return context()


def test_gradients_are_synchronised_in_the_last_micro_batch_alone():
    one, model = step(), Counting()
    for batch in one:
        with one.sync(model, batch):
            pass
    assert model.quiet == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_gradients_are_synchronised_in_the_last_call_whatever_the_order(order):
    one, model, quiet = step(), Counting(), []
    batches = list(one)
    for micro in order:
        with one.sync(model, batches[micro]):
            quiet.append(model.quiet)
    assert quiet == [1, 2, 2]
    one.commit()


def test_with_two_passes_a_batch_gradients_are_synchronised_once_every_batch_has_come():
    one, model, quiet = step(), Counting(), []
    for batch in one:
        for _ in range(2):
            with one.sync(model, batch):
                quiet.append(model.quiet)
    assert quiet == [1, 2, 3, 4, 4, 4]
    one.commit()


def test_each_model_is_synchronised_in_its_own_last_call():
    one, models = step(), (Counting(), Counting())
    batches = list(one)
    for model in models:
        for batch in batches:
            with one.sync(model, batch):
                pass
    assert [model.quiet for model in models] == [2, 2]
    one.commit()


def test_a_call_that_an_exception_leaves_does_not_count_and_may_be_made_again():
    one, model, quiet = step(), Counting(), []
    for batch in one:
        for fails in (True, False):
            with suppress(MemoryError), one.sync(model, batch):
                quiet.append(model.quiet)
                if fails and batch.num_documents == 2:
                    raise MemoryError
    assert quiet == [1, 2, 3, 4, 4, 4]
    one.commit()


LEFT_OUT = r"step 9: micro-batch {} of 3 was not passed to step\.sync, .* also for an empty one"


@pytest.mark.parametrize("skipped", [1, 2])
def test_a_loop_that_leaves_a_micro_batch_out_is_told_when_it_asks_for_the_next(skipped):
    one, model = step(), Counting()
    batches = iter(one)
    for k in range(skipped):
        with one.sync(model, next(batches)):
            assert model.quiet == k + 1
    next(batches)
    with pytest.raises(LoaderError, match=LEFT_OUT.format(skipped)):
        next(batches)


@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_a_loop_over_a_list_that_leaves_a_micro_batch_out_is_told_at_commit(skipped):
    one, model = step(), Counting()
    for k, batch in enumerate(list(one)):
        if k != skipped:
            with one.sync(model, batch):
                pass
    with pytest.raises(LoaderError, match=LEFT_OUT.format(skipped)):
        one.commit()


def test_a_model_that_gets_some_of_the_micro_batches_alone_is_told_at_commit():
    one, whole, part = step(), Counting(), Counting()
    for k, batch in enumerate(one):
        with one.sync(whole, batch), one.sync(part, batch) if k else nullcontext():
            pass
    with pytest.raises(LoaderError, match=LEFT_OUT.format(0)):
        one.commit()


def test_a_loop_that_passes_each_micro_batch_one_later_is_not_refused():
    one, model, before = step(), Counting(), None
    for batch in chain(one, [None]):
        if before is not None:
            with one.sync(model, before):
                pass
        before = batch
    assert model.quiet == 2
    one.commit()


def test_a_step_without_a_call_is_refused_where_the_loop_has_made_some_before():
    one, model = step(), Counting()
    with one.sync(model, next(iter(one))):
        pass
    one.retry()
    list(one)
    with pytest.raises(LoaderError, match=LEFT_OUT.format(0)):
        one.commit()


class Flagged:
    """Stands where FSDP2 stands."""

    def __init__(self):
        self.flags = []

    def set_requires_gradient_sync(self, value):
        self.flags.append(value)


def test_fsdp_gets_its_flag_and_it_is_set_back():
    one, model = step(), Flagged()
    for batch in one:
        with one.sync(model, batch):
            pass
    assert model.flags == [False, True, False, True, True, True]


def test_an_empty_batch_gives_a_zero_loss_with_zero_gradients():
    one = step()
    model = torch.nn.Embedding(11, 11)
    *_, empty = list(one)
    loss = one.loss(model(empty.input_ids), empty)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(model.weight.grad, torch.zeros(11, 11))


def bare(**more):
    return Step(
        index=0,
        world_size=2,
        facts=facts(**more),
        rows=Rows(iter([row(0, micros=2)])),
        batches=DevicePrefetcher(to_batch, None),
        on_commit=lambda s: None,
    )


def test_a_step_without_a_supervised_token_has_the_scale_zero():
    assert bare(supervised=0).loss_scale == 0.0


def test_a_rank_with_fewer_rows_than_micro_batches_takes_part_with_empty_ones():
    batches = list(bare(micros=3, rows=1))
    assert [batch.num_documents for batch in batches] == [2, 0, 0]


class Aside:
    """Streams that note which rows were begun before they were taken."""

    def __init__(self):
        self.events = []

    def side(self):
        return nullcontext()

    def mark(self):
        return None

    def join(self, mark, tensors):
        self.events.append("joined")

    def make(self, r):
        self.events.append(r.address)
        return to_batch(r)


def looking_ahead(rows, has_row, commits):
    streams = Aside()
    one = Step(
        index=9,
        world_size=2,
        facts=facts(),
        rows=Rows(iter(rows), has_row),
        batches=DevicePrefetcher(streams.make, streams),
        on_commit=commits.append,
    )
    return one, streams


def test_the_next_row_is_begun_before_its_turn_also_that_of_the_next_step():
    following = row(7)
    rows = [row(0), row(1), row(2), following]
    one, streams = looking_ahead(rows, lambda: True, [])
    seen = []
    for batch in one:
        seen.append(list(streams.events))
        one.loss(torch.zeros(1, batch.num_tokens, 11), batch)
    first = [0, "joined", 1]
    assert seen == [first, [*first, "joined", 2], [*first, "joined", 2, "joined", 7]]
    assert one._rows.take() is following


def test_looking_ahead_changes_nothing_of_what_a_step_gives_and_commits():
    rows, commits = [row(0), row(1, indices=(2,)), row(2, indices=())], []
    ahead, _ = looking_ahead([*rows, row(7)], lambda: True, commits)
    plain = step(rows)
    for ours, theirs in zip(ahead, plain, strict=True):
        assert torch.equal(ours.input_ids, theirs.input_ids)
        assert ours.indices.tolist() == theirs.indices.tolist()
    with pytest.raises(LoaderError, match="given all of its micro-batches"):
        next(iter(ahead))
    assert entry_of(KEY, [ahead.trained()]) == entry_of(KEY, [plain.trained()])
    ahead.commit()
    assert commits == [ahead]


def test_a_loop_that_was_left_goes_on_with_the_row_that_was_begun():
    one, streams = looking_ahead([row(0), row(1), row(2)], lambda: True, [])
    for _ in one:
        break
    with pytest.raises(LoaderError, match="only 1 were taken before commit"):
        one.commit()
    assert [batch.num_documents for batch in one] == [2, 2]
    assert [event for event in streams.events if event != "joined"] == [0, 1, 2]


def test_a_row_that_is_not_here_yet_is_not_waited_for():
    taken = []

    def slow():
        for k in range(3):
            taken.append(k)
            yield row(k)

    one, streams = looking_ahead(slow(), lambda: False, [])
    batches = iter(one)
    next(batches)
    assert taken == [0]
    assert streams.events == [0, "joined"]
    assert len(list(batches)) == 2


def test_a_step_that_is_begun_again_looks_ahead_to_its_own_rows():
    one, streams = looking_ahead([row(0), row(1), row(2), row(7)], lambda: True, [])
    first = [batch.indices.tolist() for batch in one]
    one.retry()
    streams.events.clear()
    assert [batch.indices.tolist() for batch in one] == first
    assert [event for event in streams.events if event != "joined"] == [0, 1, 2, 7]


def test_a_loop_whose_step_is_skipped_ends_there_and_takes_nothing_of_the_next():
    rows = Rows(iter([row(0), row(1), row(2), row(0, indices=(9,))]))
    one, given = step(rows=rows), []
    for batch in one:
        given.append(batch.indices.tolist())
        if len(given) == 1:
            one.skip()
    assert given == [[0, 1]]
    assert rows.take().indices.tolist() == [9]


def test_what_a_step_has_trained_keeps_nothing_of_the_block_it_came_in():
    rows = [row(0), row(1, indices=(2,)), row(2, indices=())]
    one = step(rows=rows)
    list(one)
    trained = one.trained().batches
    assert [batch.indices.tolist() for batch in trained] == [r.indices.tolist() for r in rows]
    assert not any(np.shares_memory(batch.indices, r.indices) for batch, r in zip(trained, rows, strict=True))
    assert all(batch.indices.base is None for batch in trained)
