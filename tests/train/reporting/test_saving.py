"""Savers of several ranks, each in a thread of its own, with a real rendezvous and steps of any pace."""

import asyncio
import random
import threading
import time
from types import SimpleNamespace

import pytest
import ray

from raypack.actors import rendezvous as rendezvous_module
from raypack.actors import rendezvous_client
from raypack.actors.rendezvous import Rendezvous
from raypack.actors.rendezvous_client import RendezvousClient
from raypack.train.reporting import saving
from raypack.train.reporting.saving import REASON, RESIZE, Saver, SaveRequest, ask_to_save
from tests.support.local_run import LocalActor


@pytest.fixture(autouse=True)
def futures(monkeypatch):
    """Answers are futures here instead of Ray's references; no wish is left over."""

    def wait(waited, timeout):
        return [f for f in waited if f.done()], [f for f in waited if not f.done()]

    shape = SimpleNamespace(get=lambda f: f.result(20), wait=wait, exceptions=ray.exceptions)
    monkeypatch.setattr(saving, "ray", shape)
    monkeypatch.setattr(saving, "_process", saving._Process())
    monkeypatch.setattr(saving, "_POLL_S", 0.01)


class Ranks:
    """Ranks that train in threads; in lockstep, each waits for all others in every step."""

    def __init__(self, world_size, steps, *, lockstep=True, pace=0.001):
        self.rendezvous = LocalActor(lambda: Rendezvous(world_size))
        self.savers = [Saver(RendezvousClient(self.rendezvous, rank)) for rank in range(world_size)]
        self.saved = [[] for _ in self.savers]
        self.steps, self.pace = steps, pace
        self.barrier = threading.Barrier(world_size) if lockstep else None
        self.errors = []

    def train(self, rank):
        saver, dice = self.savers[rank], random.Random(rank)
        try:
            for step in range(self.steps):
                saver.remember(lambda more, step=step: self.saved[rank].append((step, more[REASON])))
                saver.boundary(step)
                if self.barrier:
                    self.barrier.wait(15)
                time.sleep(self.pace * dice.random())
        except BaseException as error:
            self.errors.append(error)
            raise

    def run(self, *acts):
        """Train all ranks; do ``acts``, pairs of a delay in seconds and a function, meanwhile."""
        threads = [threading.Thread(target=self.train, args=(rank,)) for rank in range(len(self.savers))]
        for thread in threads:
            thread.start()
        for delay, act in acts:
            time.sleep(delay)
            act()
        for thread in threads:
            thread.join()
        self.rendezvous.stop()
        assert not self.errors
        assert all(saved == self.saved[0] for saved in self.saved)
        return self.saved[0]


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("pace", [0.0, 0.005])
def test_ranks_in_lockstep_save_once_at_one_step_when_they_are_asked_in_mid_run(world_size, pace):
    ranks = Ranks(world_size, 400 if pace else 3000, pace=pace)
    saved = ranks.run((0.05, lambda: ask_to_save(SaveRequest(RESIZE))))
    assert len(saved) == 1
    assert saved[0][1] == RESIZE


def test_two_wishes_one_after_the_other_are_two_saves():
    ranks = Ranks(2, 600, pace=0.002)
    asks = [(0.05, lambda: ask_to_save(SaveRequest(RESIZE))), (0.3, lambda: ask_to_save(SaveRequest(RESIZE)))]
    assert len(ranks.run(*asks)) == 2


def test_ranks_that_are_not_in_lockstep_agree_all_the_same():
    saved = Ranks(3, 600, lockstep=False, pace=0.002).run((0.05, lambda: ask_to_save(SaveRequest(RESIZE))))
    assert len(saved) == 1


def test_nodes_that_are_about_to_go_are_saved_for_once_each(monkeypatch):
    gone = set()
    monkeypatch.setattr(saving, "preempted_nodes", lambda: frozenset(gone))
    ranks = Ranks(2, 600, pace=0.002)
    saved = ranks.run((0.05, lambda: gone.add("a")), (0.3, lambda: gone.add("b")))
    assert [reason for _, reason in saved] == [saving.PREEMPTION] * 2


def test_a_saved_rank_waits_to_be_stopped_and_goes_on_when_it_is_not(caplog):
    ranks = Ranks(2, 300, pace=0.002)
    assert len(ranks.run((0.05, lambda: ask_to_save(SaveRequest(RESIZE, hold_s=0.2))))) == 1
    assert "did not come within 0.2 s" in caplog.text


def test_a_rank_that_learns_of_the_step_too_late_does_not_save_there_and_all_try_again():
    ranks = Ranks(2, 0)
    for rank, saver in enumerate(ranks.savers):
        saver.remember(lambda more, rank=rank: ranks.saved[rank].append(ranks.at))
    ask_to_save(SaveRequest(RESIZE))
    for saver in ranks.savers:
        saver.boundary(5)
    for saver in ranks.savers:
        saver._proposal.result(5)
    ranks.at = 50  # 7 was proposed
    threads = [threading.Thread(target=saver.boundary, args=(50,)) for saver in ranks.savers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ranks.saved == [[], []]
    assert [saver._attempt for saver in ranks.savers] == [1, 1]
    ranks.rendezvous.stop()


def test_a_rank_whose_answer_was_lost_with_the_meeting_saves_where_the_others_do(monkeypatch):
    monkeypatch.setattr(rendezvous_client, "ray", saving.ray)
    monkeypatch.setattr(rendezvous_module, "exit_after_grace", lambda: asyncio.sleep(0))
    ranks = Ranks(2, 0)
    for rank, saver in enumerate(ranks.savers):
        saver._rendezvous.watch()
        saver.remember(lambda more, rank=rank: ranks.saved[rank].append(ranks.at))
    ask_to_save(SaveRequest(RESIZE))
    for ranks.at in (5, 6):  # where they stand, and where they learn of the proposal
        for saver in ranks.savers:
            saver.boundary(ranks.at)
        for saver in ranks.savers:
            saver._proposal.result(5)
    assert ranks.savers[0]._outcome.result(5)  # here, and not read before the end of the step
    ranks.savers[1]._rendezvous._pending_save = None
    ranks.rendezvous.die()
    ranks.savers[1]._outcome = ranks.savers[1]._rendezvous.answer_save(0, 0, True)  # sent again, as by Ray
    ranks.at = 7
    for saver in reversed(ranks.savers):
        saver.boundary(7)
    assert ranks.saved == [[7], [7]]
    for saver in ranks.savers:
        ranks.rendezvous.leave.remote(saver._rendezvous.rank)
    ranks.rendezvous.stop()


def test_a_process_whose_loops_have_not_reported_says_so_and_takes_no_wish():
    saver = Saver(RendezvousClient(None, 0))
    assert not ask_to_save(SaveRequest(RESIZE))
    saver.boundary(3)  # nothing to do, nobody to ask
    saver.remember(lambda more: None)
    assert ask_to_save(SaveRequest(RESIZE))
    saver.close()
    assert not ask_to_save(SaveRequest(RESIZE))
