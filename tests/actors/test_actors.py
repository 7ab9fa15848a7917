import os
import signal
import threading
import time

import pytest
import ray

from raypack.actors.grace_exit import GRACE_S
from raypack.actors.planner import PATIENCE_S, PlannerSpec, start_planner
from raypack.actors.rendezvous_client import join_rendezvous
from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.assignment import AttentionCost
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.step import StepCursor
from raypack.errors import LoaderError
from tests.conftest import long_tailed
from tests.support.local_ray import local_ray

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_ray():
        yield


@pytest.fixture
def spec(make_source):
    source = make_source(long_tailed(400))
    options = TokenBatchOptions(64)
    one = StepPlanner(
        source.fingerprint, source.lengths, options, batches_per_step=4, supervised=source.supervised
    )
    return PlannerSpec(
        source_path=source.path,
        state=one.state(),
        world_size=2,
        epochs=1,
        attention_cost=AttentionCost(),
        ahead=10,
        local_world_size=2,
    )


def planner_for(spec, name):
    return start_planner(spec, name=name, node_id=ray.get_runtime_context().get_node_id())


def test_a_block_within_the_credit_is_granted_and_one_beyond_it_waits_for_a_commit(spec):
    actor = planner_for(spec, "credit")
    assert len(ray.get(actor.grant.remote(0, 0, 10))) == 10
    pending = actor.grant.remote(0, 10, 2)
    assert ray.wait([pending], timeout=1)[0] == []
    actor.advance.remote(0, 1, 0, StepCursor())
    assert ray.wait([pending], timeout=1)[0] == []
    actor.advance.remote(0, 2, 0, StepCursor())
    assert len(ray.get(pending, timeout=3)) == 2
    assert ray.get(actor.status.remote(0)) == {"committed": 2, "granted": 12, "asked": 2}


def test_a_grant_that_does_not_come_is_answered_in_time(spec):
    actor = planner_for(spec, "patience")
    began = time.monotonic()
    assert ray.get(actor.grant.remote(0, 5, 6), timeout=3 * PATIENCE_S) is None
    assert time.monotonic() - began >= PATIENCE_S * 0.9


def test_peers_of_a_node_find_one_planner_by_its_name(spec):
    first, second = planner_for(spec, "peers"), planner_for(spec, "peers")
    assert first._actor_id == second._actor_id


def test_a_killed_planner_that_owes_a_grant_begins_again_and_pays_it(spec):
    actor = planner_for(spec, "killed")
    whole = ray.get(actor.grant.remote(0, 0, 10))
    pid = ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))
    owed = actor.grant.remote(0, 10, 4)
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    steps = StepPlanner.from_state(spec.state, long_tailed(400), spec.state.options).steps(0, 3)
    deadline = time.monotonic() + 30
    block = None
    while block is None and time.monotonic() < deadline:
        actor.advance.remote(0, 6, 0, steps[-1].end)  # as a waiting loader does each second
        if ray.wait([owed], timeout=1)[0]:
            block = ray.get(owed)
            owed = actor.grant.remote(0, 10, 4)
    assert block is not None
    assert len(block) == 4
    other = planner_for(spec, "undisturbed")
    other.advance.remote(0, 6, 0, steps[-1].end)
    expected = ray.get(other.grant.remote(0, 10, 4))
    assert block.indices.tolist() == expected.indices.tolist()
    assert not set(block.indices.tolist()) & set(whole.indices.tolist())


def test_a_planner_ends_when_its_ranks_have_left(spec):
    actor = planner_for(spec, "leave")
    ray.get([actor.leave.remote(rank) for rank in (0, 1)])
    time.sleep(GRACE_S + 1)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.status.remote(0))


def test_ranks_that_meet_get_everyones_word():
    points = [join_rendezvous(3, rank, name="rendezvous") for rank in range(3)]
    words = {}

    def go(point):
        words[point.rank] = point.gather("t", point.rank * 10, timeout_s=20, what="a test")

    threads = [threading.Thread(target=go, args=(point,)) for point in points]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert words == {rank: [0, 10, 20] for rank in range(3)}
    for point in points:
        point.leave()


def test_a_meeting_that_died_between_two_answers_is_told_again_by_who_got_one():
    first, second = (join_rendezvous(2, rank, name="died") for rank in range(2))
    second.post("t", "two")
    assert first.gather("t", "one", timeout_s=20, what="a test") == ["one", "two"]
    assert ray.get([point.answer_save(0, 0, True) for point in (first, second)]) == [True, True]
    second._pending_save = None  # as if its answer had been lost
    actor = ray.get_actor("died")
    incarnation = ray.get(actor.incarnation.remote(None))
    ray.kill(actor, no_restart=False)
    assert (
        ray.get(actor.incarnation.remote(incarnation), timeout=60) != incarnation
    )  # the next life, or it would wait
    assert second.gather("t", "two", timeout_s=20, what="a test") == ["one", "two"]
    assert ray.get(second.answer_save(0, 0, True), timeout=20)
    watching = [thread for thread in threading.enumerate() if thread.name == "raypack-rendezvous"]
    first.leave()
    second.leave()
    for thread in watching:
        thread.join(20)
        assert not thread.is_alive()


def test_a_rank_that_waits_alone_learns_who_is_missing():
    points = [join_rendezvous(3, rank, name="alone") for rank in range(3)]
    with pytest.raises(LoaderError, match="rank 1 waited 1 s in report for rank 0, 2: report must be called"):
        points[1].gather("t", None, timeout_s=1, what="report")
    for point in points:
        point.leave()
