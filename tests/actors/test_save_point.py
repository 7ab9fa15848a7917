"""How ranks agree on a step to save at: any interleaving of ranks, with and without lockstep."""

import asyncio

import pytest

from raypack.actors import save_point
from raypack.actors.rendezvous import Rendezvous
from raypack.actors.save_point import MARGIN_STEPS, SavePoint


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


async def rank_of(rendezvous, rank, stood, *, now=None):
    """Tell where a rank stood, and answer as it stands when the proposal arrives."""
    step = await rendezvous.propose_save(0, 0, rank, stood)
    return step, await rendezvous.answer_save(0, 0, rank, (stood if now is None else now) <= step)


@pytest.mark.parametrize("stands", [[5], [5, 5], [7, 3, 9]])
def test_all_ranks_save_at_one_step_beyond_the_furthest(stands):
    async def all_ranks():
        rendezvous = Rendezvous(len(stands))
        return await asyncio.gather(*(rank_of(rendezvous, rank, step) for rank, step in enumerate(stands)))

    assert run(all_ranks()) == [(max(stands) + MARGIN_STEPS, True)] * len(stands)


def test_a_rank_that_is_beyond_the_proposal_makes_all_go_on():
    async def all_ranks():
        rendezvous = Rendezvous(3)
        late = rank_of(rendezvous, 1, 4, now=99)
        return await asyncio.gather(rank_of(rendezvous, 0, 4), late, rank_of(rendezvous, 2, 4))

    assert [saves for _, saves in run(all_ranks())] == [False] * 3


def test_a_rank_that_never_answers_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(save_point, "PATIENCE_S", 0.05)

    async def all_ranks():
        rendezvous = Rendezvous(2)
        silent = asyncio.create_task(rendezvous.propose_save(0, 0, 1, 3))
        outcome = await rank_of(rendezvous, 0, 4)
        late = await rendezvous.answer_save(0, 0, 1, True)
        return outcome, late, await silent

    assert run(all_ranks()) == ((6, False), False, 6)


def test_what_was_decided_once_stays():
    async def decide():
        point = SavePoint(2, 0)
        point.answer(0, True)
        point.answer(1, True)
        point.answer(0, False)
        return await point.wait()

    assert run(decide())


def test_each_further_try_leaves_more_room():
    async def step_of(attempt):
        return await SavePoint(1, attempt).propose(0, 10)

    assert [run(step_of(attempt)) for attempt in range(4)] == [12, 18, 42, 138]


def test_where_steps_are_long_the_next_one_is_proposed():
    async def ranks():
        rendezvous = Rendezvous(2)
        calls = (rendezvous.propose_save(0, 0, rank, 7, slow) for rank, slow in ((0, False), (1, True)))
        return await asyncio.gather(*calls)

    assert run(ranks()) == [8, 8]


def test_a_rank_that_waits_in_a_try_that_another_has_given_up_goes_on_to_the_next():
    """As when the actor begins again between two answers, and has forgotten the first."""

    async def ranks():
        rendezvous = Rendezvous(2)
        behind = asyncio.create_task(rank_of(rendezvous, 1, 5))
        await asyncio.sleep(0)
        ahead = asyncio.create_task(rendezvous.propose_save(0, 1, 0, 6))
        superseded, _ = await behind
        return superseded, await asyncio.gather(ahead, rendezvous.propose_save(0, 1, 1, 6))

    assert run(ranks()) == (save_point.SUPERSEDED, [14, 14])
