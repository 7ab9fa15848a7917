"""The rank deal without a cluster: ranks are threads, the flag of a step is a barrier."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from raypack.audit import verify
from raypack.batching.options import TokenBatchOptions
from raypack.batching.rank.consolidated import ConsolidatedTokenBatchState
from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.batching.sequence.plan_block import RowMeta
from raypack.batching.sequence.plan_buffer import PlanBuffer
from raypack.batching.sequence.rank_steps import RankSteps
from raypack.batching.steps.step import StepCursor
from raypack.checkpoint.files import loader_folder, write_manifest, write_rank, write_state
from raypack.checkpoint.goal import Goal
from raypack.checkpoint.ledger import Attempt, EpochEntry, Ledger
from raypack.checkpoint.run_state import state_values
from raypack.data.stream.blocks import StreamRow
from raypack.sampling.receipt import Receipt, receipt_key
from raypack.sampling.sampler import StatefulShardSampler
from raypack.train.deals.rank_deal import RankDeal
from raypack.train.deals.rows import Rows
from tests.conftest import long_tailed
from tests.support.local_run import Sum

OPTIONS = TokenBatchOptions(64)
COUNT, EPOCHS, BATCHES = 150, 2, 5


def fresh(source, rank, world_size):
    shard = StatefulShardSampler(source.fingerprint, len(source), rank=rank, world_size=world_size, seed=4)
    return StatefulTokenBatchSampler(shard, source.lengths, OPTIONS)


def micros_of(world_size, batches=BATCHES):
    return -(-batches // world_size)


def rows_of(steps, rank):
    plans, first = PlanBuffer(steps), 0
    while True:
        block = plans.block(rank, first, 4)
        at = np.concatenate([[0], np.cumsum(block.counts)])
        for k in range(len(block)):
            meta, indices = RowMeta(*block.meta[k].tolist()), block.indices[at[k] : at[k + 1]]
            yield StreamRow(first + k, meta, indices, np.empty(0, np.int32), np.empty(0, np.int32), None)
        first += len(block)
        if len(block) < 4:
            return


class World:
    """Some ranks that train in step."""

    def __init__(self, source, samplers, steps=0, batches=BATCHES):
        self.micros = micros_of(len(samplers), batches)
        self.source, self.samplers, self.size = source, samplers, len(samplers)
        agree = Sum(self.size)
        self.deals = [
            RankDeal(
                sampler,
                micros=self.micros,
                batches_per_step=batches,
                steps=steps,
                epochs=EPOCHS,
                agree=agree,
            )
            for sampler in samplers
        ]
        self.began = [(sampler.state(), steps) for sampler in samplers]

    def train(self, most=10**6):
        """Return, for each step, (epoch, indices by rank); every rank must see the same steps."""
        out = [[] for _ in self.deals]
        errors = []

        def go(rank):
            try:
                state, steps = self.began[rank]
                source = RankSteps(
                    state,
                    self.source.lengths,
                    self.source.supervised,
                    micros=self.micros,
                    steps=steps,
                    epochs=EPOCHS,
                )
                rows = Rows(rows_of(source, rank))
                while len(out[rank]) < most and (facts := self.deals[rank].begin(rows)) is not None:
                    taken = [rows.take().indices for _ in range(facts.rows)]
                    self.deals[rank].commit(facts)
                    indices = np.concatenate([np.empty(0, np.int64), *taken])
                    out[rank].append(((facts.epoch, facts.step, facts.micros), indices))
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=go, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        steps = [[place for place, _ in rank] for rank in out]
        assert all(rank == steps[0] for rank in steps)
        return [(place, [rank[k][1] for rank in out]) for k, place in enumerate(steps[0])]

    def consolidated(self):
        return ConsolidatedTokenBatchState.consolidate(s.state() for s in self.samplers)


@pytest.fixture
def source(make_source):
    return make_source(long_tailed(COUNT, seed=9))


@pytest.mark.parametrize("worlds", [(1,), (2,), (4,), (2, 3, 1, 5), (5, 2), (3, 7)])
@pytest.mark.parametrize("most", [2, 7])
@pytest.mark.parametrize("changing", [False, True], ids=["the-same", "changing"])
def test_all_ranks_take_equal_steps_and_each_example_is_trained_once_an_epoch(
    source, worlds, most, changing, tmp_path
):
    """With ``changing``, each attempt has another budget and another number of batches a step."""
    trained = {0: [], 1: []}
    receipts, counts, attempts, remaining, steps = {}, {0: 0, 1: 0}, [], None, 0
    for k, size in enumerate(worlds):
        if remaining is None:
            samplers = [fresh(source, rank, size) for rank in range(size)]
        else:
            if changing:
                remaining = replace(remaining, options=TokenBatchOptions(64 + 9 * k))
            samplers = [
                StatefulTokenBatchSampler.reshard(remaining, rank, size, source.lengths)
                for rank in range(size)
            ]
        batches = BATCHES + k * changing
        world = World(source, samplers, steps, batches)
        done = world.train(10**6 if k == len(worlds) - 1 else most)
        for (epoch, _, micros), ranks in done:
            assert micros == micros_of(size, batches)
            indices = np.concatenate(ranks)
            trained[epoch] += indices.tolist()
            counts[epoch] += 1
            tokens = int(source.lengths.array[indices].sum())
            receipt = Receipt.of(receipt_key(source.fingerprint, epoch), indices, tokens)
            receipts[epoch] = receipts.get(epoch, Receipt()) + receipt
        first = attempts[-1].first_step + attempts[-1].steps if attempts else 0
        if done:
            ran = {"batches_per_step": batches, "options": samplers[0].options}
            attempts.append(replace(attempt(k, size, first, len(done)), **ran))
        remaining, steps = world.consolidated(), world.deals[0].cursor.steps
    for epoch in (0, 1):
        assert sorted(trained[epoch]) == list(range(COUNT))
    entries = tuple(EpochEntry(epoch=e, steps=counts[e], receipt=receipts[e]) for e in (0, 1))
    audit = verify(_checkpoint(tmp_path / "c", source, world, Ledger(tuple(attempts), entries)))
    assert audit.ok, audit.findings
    assert [e.complete for e in audit.epochs] == [True, True]


def attempt(number, world_size, first_step, steps):
    return Attempt(
        number=number,
        world_size=world_size,
        first_step=first_step,
        steps=steps,
        batches_per_step=BATCHES,
        options=OPTIONS,
    )


def _checkpoint(directory, source, world, ledger):
    folder = loader_folder(directory, None)
    values = state_values(
        deal="rank",
        report_id="d" * 32,
        world_size=world.size,
        source_path=source.path,
        source=source.summary(),
        goal=Goal(epochs=2),
        plan=world.deals[0].plan(),
        ledger=ledger,
    )
    files = write_state(folder, values)
    for rank, deal in enumerate(world.deals):
        files |= write_rank(folder, deal.own(), report_id="d" * 32, rank=rank, world_size=world.size)
    write_manifest(folder, values, files)
    return directory


def _trained_once(source, tmp_path, steps=4):
    world = World(source, [fresh(source, rank, 2) for rank in range(2)])
    done = world.train(steps)
    receipt = Receipt()
    for _, ranks in done:
        indices = np.concatenate(ranks)
        tokens = int(source.lengths.array[indices].sum())
        receipt += Receipt.of(receipt_key(source.fingerprint, 0), indices, tokens)
    ledger = Ledger(
        (attempt(0, 2, 0, steps),),
        (EpochEntry(epoch=0, steps=steps, receipt=receipt),),
    )
    return _checkpoint(tmp_path / "c", source, world, ledger)


def test_a_run_in_mid_epoch_passes(source, tmp_path):
    audit = verify(_trained_once(source, tmp_path))
    assert audit.consistent, audit.findings
    assert not audit.ok
    assert not audit.epochs[0].complete


@pytest.mark.parametrize("damage", ["missing", "swapped", "stale", "truncated"])
def test_a_rank_file_that_is_not_right_is_named(source, tmp_path, damage):
    directory = _trained_once(source, tmp_path)
    first, second = (directory / f"raypack/rank_0000{r}.json" for r in (0, 1))
    if damage == "missing":
        second.unlink()
    elif damage == "swapped":
        second.write_bytes(first.read_bytes())
    elif damage == "stale":
        own = World(source, [fresh(source, r, 2) for r in range(2)]).deals[1].own()
        write_rank(directory / "raypack", own, report_id="e" * 32, rank=1, world_size=2)
    else:
        second.write_bytes(second.read_bytes()[:-40])
    (finding,) = verify(directory).findings
    assert "rank_00001.json" in finding


def test_a_planner_that_began_again_goes_on_where_it_is_told(source):
    def steps():
        return RankSteps(
            fresh(source, 1, 2).state(), source.lengths, source.supervised, micros=3, steps=0, epochs=2
        )

    whole, one = [], steps()
    while (step := one.next_step()) is not None:
        whole.append(step)
    assert {step.epoch for step in whole} == {0, 1}
    for k in (1, 3, len(whole) // 2, len(whole) - 1):
        fresh_one = steps()
        fresh_one.move_to(whole[k - 1].epoch, whole[k - 1].end)
        assert fresh_one.next_step() == whole[k]
    fresh_one.move_to(0, StepCursor())
    assert fresh_one.next_step() == whole[0]
