"""Whole lives of a world of samplers, against plain lists."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raypack.sampling import ConsolidatedSamplerState, EpochOrder, StatefulShardSampler
from tests.support.resume_check import through_json
from tests.support.worlds import world


class World(RuleBasedStateMachine):
    """Every rank's order is a plain list; issuing and committing move numbers over it."""

    @initialize(
        length=st.integers(0, 60),
        size=st.integers(1, 6),
        seed=st.none() | st.integers(0, 2**64 - 1),
        tail=st.sampled_from(["uneven", "drop"]),
        shuffle=st.sampled_from(["full", "block"]),
    )
    def begin(self, length, size, seed, tail, shuffle):
        self.length, self.seed, self.tail, self.shuffle = length, seed, tail, shuffle
        self.samplers = world(length, size, seed=seed, tail=tail, shuffle=shuffle)
        self.enter_epoch(0)

    def enter_epoch(self, epoch):
        size = len(self.samplers)
        order = EpochOrder(self.length, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
        whole = order.slice(0, self.length).tolist()
        self.epoch = whole if self.tail == "uneven" else whole[: self.length // size * size]
        self.trained = []
        self.deal(self.epoch)

    def deal(self, left):
        size = len(self.samplers)
        self.lists = [left[rank::size] for rank in range(size)]
        self.issued, self.committed = [0] * size, [0] * size

    def pick(self, number):
        return number % len(self.samplers)

    @rule(number=st.integers(0, 99), count=st.integers(1, 9))
    def issue(self, number, count):
        rank = self.pick(number)
        start = self.issued[rank]
        expected = self.lists[rank][start : start + count]
        assert self.samplers[rank].unissued_indices(count).tolist() == expected
        found = self.samplers[rank].next_indices(count)
        assert (None if found is None else found.tolist()) == (expected or None)
        self.issued[rank] += len(expected)

    @rule(number=st.integers(0, 99), share=st.integers(0, 9))
    def commit(self, number, share):
        rank = self.pick(number)
        count = min(share, self.issued[rank] - self.committed[rank])
        start = self.committed[rank]
        self.trained += self.lists[rank][start : start + count]
        self.samplers[rank].commit(count)
        self.committed[rank] += count

    @rule(number=st.integers(0, 99))
    def rewind(self, number):
        rank = self.pick(number)
        self.samplers[rank].rewind_uncommitted()
        self.issued[rank] = self.committed[rank]

    @rule(number=st.integers(0, 99))
    def restart_a_rank(self, number):
        rank = self.pick(number)
        self.samplers[rank] = StatefulShardSampler.from_state(through_json(self.samplers[rank].state()))
        self.issued[rank] = self.committed[rank]

    @rule(size=st.integers(1, 7))
    def reshard(self, size):
        states = [sampler.state() for sampler in self.samplers]
        consolidated = through_json(ConsolidatedSamplerState.consolidate(states))
        trained = set(self.trained)
        left = [index for index in self.epoch if index not in trained]
        assert consolidated.consumed == len(self.trained)
        assert consolidated.remaining_indices.tolist() == left
        self.samplers = [StatefulShardSampler.reshard(consolidated, rank, size) for rank in range(size)]
        self.deal(left)

    @rule(epoch=st.integers(0, 2**64 - 1))
    def start_epoch(self, epoch):
        for sampler in self.samplers:
            sampler.start_epoch(epoch)
        self.enter_epoch(epoch)

    @invariant()
    def ranks_are_as_the_lists_say(self):
        assert len(set(self.trained)) == len(self.trained)
        for rank, sampler in enumerate(self.samplers):
            assert (sampler.issued, sampler.committed) == (self.issued[rank], self.committed[rank])
            assert sampler.indices.tolist() == self.lists[rank]
            assert sampler.remaining == len(self.lists[rank]) - self.committed[rank]


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
