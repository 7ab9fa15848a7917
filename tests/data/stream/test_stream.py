"""The stream of a rank on a real Ray: order, pace, both backends, killed processes."""

import os
import signal
import threading
import time

import psutil
import pytest
import ray

from raypack.actors.planner import PlannerSpec, start_planner
from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.assignment import AttentionCost
from raypack.batching.steps.planner import StepPlanner
from raypack.batching.steps.step import StepCursor
from raypack.choices import BACKENDS
from raypack.data.stream.rank_stream import Stream
from raypack.data.stream.reader import ReadSpec
from raypack.errors import StreamError
from tests.conftest import long_tailed
from tests.support.local_ray import local_ray

pytestmark = pytest.mark.ray
OPTIONS = TokenBatchOptions(64)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_ray():
        yield


class Rank:
    """A train loop's side of one rank, without the training."""

    def __init__(self, source, *, rank=0, world_size=2, size=4, ahead=40, rows=8, epochs=1):
        self.rank = rank
        self.node = ray.get_runtime_context().get_node_id()
        self.local = StepPlanner(source.fingerprint, source.lengths, OPTIONS, batches_per_step=size, seed=1)
        spec = PlannerSpec(
            source_path=source.path,
            state=self.local.state(),
            world_size=world_size,
            epochs=epochs,
            attention_cost=AttentionCost(),
            ahead=ahead,
            local_world_size=1,
        )
        self.planner = start_planner(spec, name=f"stream-{time.monotonic_ns()}", node_id=self.node)
        self.spec = ReadSpec(
            source_path=source.path,
            fingerprint=source.fingerprint,
            planner=self.planner,
            rank=rank,
            block_rows=rows,
        )
        self.committed, self.cursor, self.epoch = 0, StepCursor(), 0
        self.waits = 0

    def advance(self, waited=0.0):
        assert waited < 60
        self.waits += waited > 0 and self.committed > 0
        self.planner.advance.remote(self.rank, self.committed, self.epoch, self.cursor)

    def stream(self, backend):
        return Stream(self.spec, backend=backend, node_id=self.node, on_wait=self.advance)

    def take(self, row):
        """Commit when the row is its step's last."""
        meta = row.meta
        if meta.micro == meta.micros - 1:
            self.committed = row.address + 1
            self.epoch = meta.epoch
            self.cursor = StepCursor(meta.step + 1, meta.end_position, meta.end_batches)
            self.advance()

    def run(self, backend, each=lambda row: None):
        out = []
        with self.stream(backend) as stream:
            for row in stream:
                each(row)
                out.append((row.meta, row.indices.tolist(), row.lengths.tolist(), row.input_ids.tolist()))
                self.take(row)
        return out


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_two_backends_give_equal_batches_and_those_are_the_plans(make_source, epochs):
    source = make_source(long_tailed(600))
    direct = Rank(source, epochs=epochs).run("direct")
    assert Rank(source, epochs=epochs).run("ray_data") == direct
    planner = StepPlanner(source.fingerprint, source.lengths, OPTIONS, batches_per_step=4, seed=1)
    expected = []
    for epoch in range(epochs):
        planner.start_epoch(epoch)
        for step in planner.steps(0, 10**6):
            expected += [plan.indices.tolist() for plan in step.deal(2)[0]]
    assert [indices for _, indices, _, _ in direct] == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_are_the_sources_own(make_source, backend):
    source = make_source(long_tailed(100))
    for _, indices, lengths, ids in Rank(source, world_size=1).run(backend):
        assert ids == sum((source[i]["input_ids"].tolist() for i in indices), [])
        assert lengths == [len(source[i]["input_ids"]) for i in indices]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("ahead", "rows"), [(5, 2), (16, 8), (40, 8)])
def test_the_read_ahead_reaches_its_bound_and_never_passes_it(make_source, backend, ahead, rows):
    rank = Rank(make_source(long_tailed(1500)), ahead=ahead, rows=rows)

    def granted():
        return ray.get(rank.planner.status.remote(0))["granted"]

    with rank.stream(backend) as stream:
        rows_of_it = iter(stream)
        for turn in range(3):
            rank.take(next(rows_of_it))
            rank.take(next(rows_of_it))
            deadline = time.monotonic() + 20
            reachable = (rank.committed + ahead) // rows * rows  # whole blocks within the credit
            while granted() < reachable and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(1.0 if turn == 2 else 0.1)  # the loop stalls
            assert granted() == reachable <= rank.committed + ahead


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("ahead", "rows"), [(3, 1), (4, 2)])
def test_a_read_ahead_that_just_covers_a_step_is_enough(make_source, backend, ahead, rows):
    source = make_source(long_tailed(300))
    expected = Rank(source, world_size=1, size=3).run("direct")
    rank = Rank(source, world_size=1, size=3, ahead=ahead, rows=rows)
    assert rank.run(backend) == expected
    assert rank.waits < len(expected) / 6  # a second for each of half the steps


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_is_here_where_the_block_of_the_last_one_holds_it(make_source, backend):
    rank, here = Rank(make_source(long_tailed(300)), world_size=1, rows=4), []
    with rank.stream(backend) as stream:
        assert not stream.has_row()
        for row in stream:
            here.append(stream.has_row())
            rank.take(row)
    whole = len(here) // 4 * 4
    assert whole > 8
    assert here[:whole] == [True, True, True, False] * (whole // 4)
    assert not here[-1]


def test_a_closed_stream_leaves_no_thread_and_no_reader(make_source):
    rank = Rank(make_source(long_tailed(1500)))
    stream = rank.stream("direct")
    next(iter(stream))
    stream.close()
    stream._feeder.join(15)
    assert not stream._feeder.is_alive()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("whole", [True, False])
def test_streams_leave_no_threads_behind(make_source, backend, whole):
    source = make_source(long_tailed(200))

    def once():
        rank = Rank(source)
        if whole:
            return rank.run(backend)
        with rank.stream(backend) as stream:
            next(iter(stream))
        stream._feeder.join(15)

    before = set(threading.enumerate())
    for _ in range(3):
        once()

    def ours():
        return [t.name for t in threading.enumerate() if t not in before and _ours(t.name)]

    deadline = time.monotonic() + 15
    while (left := ours()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def _ours(name):
    return name.startswith(("raypack", "Prefetcher", "StreamingExecutor-raypack", "iter_threaded"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_planner_costs_time_and_nothing_else(make_source, backend):
    source = make_source(long_tailed(600))
    expected = Rank(source).run("direct")
    rank = Rank(source)
    pid = ray.get(rank.planner.__ray_call__.remote(lambda self: os.getpid()))

    def kill(row):
        if row.address == 30:
            os.kill(pid, signal.SIGKILL)

    assert rank.run(backend, kill) == expected


def test_a_killed_reader_task_is_run_again_and_gives_the_same_rows(make_source):
    source = make_source(long_tailed(2500))
    expected = Rank(source).run("direct")

    def kill(row):
        if row.address == 60:
            victims = [p for p in psutil.process_iter() if "raypack" in _title(p) or "ReadPlan" in _title(p)]
            assert victims, "no reader process found"
            for victim in victims:
                victim.kill()

    assert Rank(source).run("ray_data", kill) == expected


def _title(process):
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return line if line.startswith("ray::") and "NodePlanner" not in line else ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reader_that_fails_tells_the_train_loop(make_source, backend):
    rank = Rank(make_source(long_tailed(50)))
    rank.spec = ReadSpec(
        source_path=rank.spec.source_path,
        fingerprint="0" * 32,
        planner=rank.planner,
        rank=0,
        block_rows=8,
    )
    with pytest.raises(Exception, match="every node must see the same source") as caught:
        rank.run(backend)
    assert isinstance(caught.value, (StreamError, ray.exceptions.RayError))
