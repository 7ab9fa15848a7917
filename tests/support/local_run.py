"""Whole attempts of a run in one process, without Ray: real loaders, planners, readers and files."""

import asyncio
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pyarrow.fs as pafs
import ray
import torch

from raypack.actors import planner as planner_module
from raypack.actors.planner import NodePlanner
from raypack.checkpoint.files import checkpoint_name, loader_folder, write_manifest
from raypack.checkpoint.ledger import Ledger
from raypack.checkpoint.reading import read_state
from raypack.data.stream import reader as reader_module
from raypack.train.elastic import deal_starts
from raypack.train.elastic import stall_monitor as waiting_module
from raypack.train.elastic.worker_context import WorkerContext
from raypack.train.loader import PackedLoader
from raypack.train.reporting import reports

LOCAL = pafs.LocalFileSystem()


class LocalActor:
    """An async actor in a thread of this process: ``actor.method.remote(...)`` gives a future.

    It can be made to die: it then begins again from its constructor, and calls in flight are put again.
    """

    def __init__(self, make):
        self._make, self.actor = make, make()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._calls = []

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *args: self._call(method, args))

    def _call(self, method, args):
        return asyncio.run_coroutine_threadsafe(self._run(method, args), self._loop)

    async def _run(self, method, args):
        while True:
            actor = self.actor
            call = asyncio.ensure_future(getattr(actor, method)(*args))
            self._calls.append(call)
            try:
                return await call
            except asyncio.CancelledError:
                if actor is self.actor:
                    raise
            finally:
                self._calls.remove(call)

    def die(self):
        """Lose the state and every call in flight, as a killed actor of Ray does."""

        async def again():
            self.actor = self._make()
            for call in self._calls:
                call.cancel()

        asyncio.run_coroutine_threadsafe(again(), self._loop).result(10)

    def stop(self):
        """End the thread, after the calls that were put before."""

        async def answered():
            await asyncio.gather(*self._calls, return_exceptions=True)
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(answered(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._loop.close()


class Sum:
    """Adds lists of integers up over threads, as an all-reduce does over processes."""

    def __init__(self, world_size):
        self.barrier = threading.Barrier(world_size)
        self.lock = threading.Lock()
        self.total = None

    def __call__(self, values):
        with self.lock:
            self.total = [a + b for a, b in zip(self.total or [0] * len(values), values, strict=True)]
        self.barrier.wait(30)
        result = self.total
        if self.barrier.wait(30) == 0:
            self.total = None
        self.barrier.wait(30)
        return result


def side_by_side(work, items):
    """Return what ``work`` gives of each item, each in a thread of its own."""
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(work, items))


class Nobody:
    """The side of a rendezvous that nobody waits in."""

    rank = 0

    def leave(self):
        pass


def patch(monkeypatch):
    """Let readers wait for futures instead of Ray's references, and actors end by themselves."""

    async def nothing():
        pass

    monkeypatch.setattr(planner_module, "exit_after_grace", nothing)
    futures = SimpleNamespace(get=lambda f, timeout=60: f.result(timeout), exceptions=ray.exceptions)
    for module in (reader_module, waiting_module):
        monkeypatch.setattr(module, "ray", futures)


def loader_of(recipe, source, worker, began, actor, restored=None):
    """Return the loader of a process from what `global_start` or `rank_start` gave it."""
    deal, _, pace = began
    return PackedLoader(
        recipe,
        name=None,
        worker=worker,
        source=source,
        deal=deal,
        ledger=restored.ledger if restored else Ledger(),
        node_planner=actor,
        rendezvous=Nobody(),
        device=torch.device("cpu"),
        pace=pace,
    )


def closed(loader):
    """End a loader and the thread of its stream."""
    loader.close()
    if loader._stream is not None:
        loader._stream._feeder.join(10)
        assert not loader._stream._feeder.is_alive()


class Attempt:
    """All ranks of one attempt, restored from a checkpoint's folder or begun anew.

    Under the rank deal they add up before each step, so each must train in a thread of its own.

    Args:
        recipe: The recipe; its backend must be ``direct``.
        source: The opened source.
        world_size: Ranks, all on one node.
        checkpoint: Folder of the checkpoint to go on from, or None.
        data_ranks: The data rank of each, where some share one.
    """

    def __init__(self, recipe, source, world_size, checkpoint=None, data_ranks=None):
        self.recipe, self.source = recipe, source
        restored = read_state(LOCAL, str(checkpoint)) if checkpoint else None
        workers = [worker_of(rank, world_size, data_ranks) for rank in range(world_size)]
        cpu = torch.device("cpu")
        began = self._starts(workers, restored, cpu)
        specs = [spec for _, spec, _ in began]
        self.actors = [LocalActor(partial(NodePlanner, spec)) for spec in specs[: self._planners(world_size)]]
        self.actor = self.actors[0]
        self.loaders = [
            loader_of(recipe, source, worker, one, self.actors[worker.rank % len(self.actors)], restored)
            for worker, one in zip(workers, began, strict=True)
        ]

    def _starts(self, workers, restored, cpu):
        start = {"rank": deal_starts.rank_start, "global": deal_starts.global_start}[self.recipe.deal]
        total = Sum(len(workers))
        with mock.patch.multiple(  # threads add up in place of a process group
            deal_starts, require_group=lambda *_: None, add_up=lambda values, device: total(values)
        ):
            return [start(self.recipe, self.source, worker, restored, cpu) for worker in workers]

    def _planners(self, world_size):
        """How many planners there are: one a node, under the rank deal one a process."""
        return world_size if self.recipe.deal == "rank" else 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for loader in self.loaders:
            loader.close()
        for loader in self.loaders:
            closed(loader)
        for actor in self.actors:
            actor.stop()

    def save(self, parent, report_id):
        """Write a checkpoint as a report does, and return its folder."""
        payloads = [{None: loader.report_payload()} for loader in self.loaders]
        reports._check_agreement(payloads)
        values = self.loaders[0].run_state(report_id, [payload[None] for payload in payloads])
        directory = parent / checkpoint_name(values)
        files, entries = [], {}
        for loader in self.loaders:
            with tempfile.TemporaryDirectory() as own:  # each process has its own, and Ray Train joins them
                entries |= reports._fill(Path(own), {None: loader}, {None: values}, None)[None]
                files.append(reports._files(Path(own)))
                shutil.copytree(own, directory, dirs_exist_ok=True)
        reports._check_names(files)
        write_manifest(loader_folder(directory, None), values, entries)
        return directory


def worker_of(rank, world_size, data_ranks=None):
    return WorkerContext(
        rank=rank,
        world_size=world_size,
        local_world_size=world_size,
        node_id="node",
        node_address="127.0.0.1",
        run_name="run",
        group="group",
        max_world_size=world_size,
        worker_cpus=1.0,
        data_ranks=data_ranks,
    )
