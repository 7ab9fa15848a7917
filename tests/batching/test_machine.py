"""Whole lives of a world of token batch samplers, against plain lists."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raypack.batching import ConsolidatedTokenBatchState, StatefulTokenBatchSampler, TokenBatchOptions
from raypack.sampling import EpochOrder, StatefulShardSampler
from tests.support.greedy_model import greedy_batches
from tests.support.resume_check import through_json

BUDGET = 12


class World(RuleBasedStateMachine):
    """Every rank's shard is a plain list, cut by the greedy rule's plain loop from where it stands."""

    @initialize(
        lengths=st.lists(st.integers(1, BUDGET), max_size=40),
        size=st.integers(1, 5),
        seed=st.none() | st.integers(0, 2**64 - 1),
        layout=st.sampled_from(["packed", "padded"]),
        limit=st.sampled_from([None, 1, 3]),
    )
    def begin(self, lengths, size, seed, layout, limit):
        self.lengths, self.seed, self.layout, self.limit = lengths, seed, layout, limit
        options = TokenBatchOptions(BUDGET, limit, layout)
        self.ranks = [
            StatefulTokenBatchSampler(
                StatefulShardSampler("s", len(lengths), rank=rank, world_size=size, seed=seed),
                lengths,
                options,
            )
            for rank in range(size)
        ]
        self.enter_epoch(0)

    def enter_epoch(self, epoch):
        order = EpochOrder(len(self.lengths), seed=self.seed, epoch=epoch)
        self.epoch, self.trained = order.slice(0, len(self.lengths)).tolist(), []
        self.deal(self.epoch)

    def deal(self, left):
        size = len(self.ranks)
        self.shards = [left[rank::size] for rank in range(size)]
        self.issued, self.committed = [0] * size, [0] * size

    def batches(self, rank, start):
        return greedy_batches(self.shards[rank][start:], self.lengths, BUDGET, self.limit, self.layout)

    @rule(number=st.integers(0, 99))
    def peek_and_issue(self, number):
        rank = number % len(self.ranks)
        expected = self.batches(rank, self.issued[rank])[:1]
        peeked, again, plan = self.ranks[rank].peek(), self.ranks[rank].peek(), self.ranks[rank].next_plan()
        assert peeked == again == plan
        assert ([] if plan is None else [plan.indices.tolist()]) == expected
        self.issued[rank] += len(expected[0]) if expected else 0

    @rule(number=st.integers(0, 99), share=st.integers(0, 20))
    def commit(self, number, share):
        rank = number % len(self.ranks)
        count = min(share, self.issued[rank] - self.committed[rank])
        self.trained += self.shards[rank][self.committed[rank] : self.committed[rank] + count]
        self.ranks[rank].commit(count)
        self.committed[rank] += count

    @rule(number=st.integers(0, 99))
    def rewind(self, number):
        rank = number % len(self.ranks)
        self.ranks[rank].rewind_uncommitted()
        self.issued[rank] = self.committed[rank]

    @rule(number=st.integers(0, 99), load=st.booleans())
    def restart_a_rank(self, number, load):
        rank = number % len(self.ranks)
        state = through_json(self.ranks[rank].state())
        if load:
            self.ranks[rank].load_state(state)
        else:
            self.ranks[rank] = StatefulTokenBatchSampler.from_state(state, self.lengths)
        self.issued[rank] = self.committed[rank]

    @rule(size=st.integers(1, 6))
    def reshard(self, size):
        states = [rank.state() for rank in self.ranks]
        merged = through_json(ConsolidatedTokenBatchState.consolidate(states))
        trained = set(self.trained)
        left = [index for index in self.epoch if index not in trained]
        assert merged.sampler.remaining_indices.tolist() == left
        self.ranks = [
            StatefulTokenBatchSampler.reshard(merged, rank, size, self.lengths) for rank in range(size)
        ]
        self.deal(left)

    @rule(epoch=st.integers(0, 2**64 - 1))
    def start_epoch(self, epoch):
        for rank in self.ranks:
            rank.start_epoch(epoch)
        self.enter_epoch(epoch)

    @invariant()
    def plans_are_as_the_lists_say(self):
        assert len(set(self.trained)) == len(self.trained)
        for number, rank in enumerate(self.ranks):
            expected = self.batches(number, self.committed[number])
            assert [plan.indices.tolist() for plan in rank.plans(0, 100)] == expected
            assert rank.remaining_batches() == len(expected)
            assert rank.sampler.issued == self.issued[number]


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
