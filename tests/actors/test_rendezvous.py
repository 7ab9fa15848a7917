"""What a rank says while it waits for others."""

import asyncio
from types import SimpleNamespace

import pytest
import ray

from raypack.actors import rendezvous_client
from raypack.actors.rendezvous import Rendezvous
from raypack.actors.rendezvous_client import RendezvousClient
from raypack.errors import LoaderError


@pytest.mark.parametrize(("timeout_s", "told"), [(600.0, True), (15.0, False)])
def test_a_rank_that_waits_long_says_where_before_it_gives_up(monkeypatch, caplog, timeout_s, told):
    fake = SimpleNamespace(wait=lambda calls, timeout: ([], calls), get=lambda call, timeout: (["word"], []))
    monkeypatch.setattr(rendezvous_client, "ray", fake)
    actor = SimpleNamespace(gather=SimpleNamespace(remote=lambda *_: None))
    point = RendezvousClient(actor, 1)
    assert point.gather("topic", "word", timeout_s=timeout_s, what="report") == ["word"]
    message = "rank 1 still waits in report, which every rank must call; it ends after 600 s"
    assert (message in caplog.text) == told


def test_a_call_that_is_put_again_after_all_have_taken_their_words_gets_the_same():
    async def calls():
        rendezvous = Rendezvous(2)
        first = await asyncio.gather(*(rendezvous.gather("t", rank, rank, 5) for rank in range(2)))
        again = await rendezvous.gather("t", 0, 0, 5)
        await rendezvous.post("t", 1, 1)
        for topic in range(100):
            await asyncio.gather(*(rendezvous.gather(f"t{topic}", rank, rank, 5) for rank in range(2)))
        return first, again, len(rendezvous._pending), len(rendezvous._ended)

    words = [0, 1], []
    assert asyncio.run(calls()) == ([words, words], words, 0, 16)


def test_a_rank_whose_call_was_sent_again_and_waits_anew_ends_with_a_name(monkeypatch):
    def late(call, timeout):
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(rendezvous_client, "ray", SimpleNamespace(get=late, exceptions=ray.exceptions))
    point = RendezvousClient(SimpleNamespace(gather=SimpleNamespace(remote=lambda *_: None)), 1)
    with pytest.raises(LoaderError, match="rank 1 waited 35 s in report for other ranks; the rendezvous has"):
        point.gather("topic", "word", timeout_s=5, what="report")


def test_save_points_of_the_past_are_forgotten():
    async def saves():
        rendezvous = Rendezvous(1)
        for number in range(50):
            await rendezvous.propose_save(number, 0, 0, number)
        return len(rendezvous._save_points)

    assert asyncio.run(saves()) == 2
