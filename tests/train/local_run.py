"""Whole attempts of a run in one process, without Ray: real loaders, planners, readers and files."""

import asyncio
import threading
from types import SimpleNamespace

import pyarrow.fs as pafs
import ray
import torch

from raypack.actors import planner as planner_module
from raypack.actors.planner import NodePlanner
from raypack.data import reader as reader_module
from raypack.train import waiting as waiting_module
from raypack.train.checkpoint_files import checkpoint_name, loader_folder, write_manifest, write_state
from raypack.train.checkpoint_reading import read_state
from raypack.train.ledger import Ledger
from raypack.train.loader import PackedLoader
from raypack.train.place import Place
from raypack.train.starts import global_start

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


class Nobody:
    """The side of a meeting that nobody waits in."""

    rank = 0

    def leave(self):
        pass


def patch(monkeypatch):
    """Let readers wait for futures instead of Ray's references, and actors end by themselves."""

    async def nothing():
        pass

    monkeypatch.setattr(planner_module, "end_soon", nothing)
    futures = SimpleNamespace(get=lambda f, timeout=60: f.result(timeout), exceptions=ray.exceptions)
    for module in (reader_module, waiting_module):
        monkeypatch.setattr(module, "ray", futures)


class Attempt:
    """All ranks of one attempt, restored from a checkpoint's folder or begun anew.

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
        places = [place_of(rank, world_size, data_ranks) for rank in range(world_size)]
        cpu = torch.device("cpu")
        starts = [global_start(recipe, source, place, restored, cpu) for place in places]
        _, spec, pace = starts[0]
        self.actor = LocalActor(lambda: NodePlanner(spec))
        self.loaders = [
            PackedLoader(
                recipe,
                name=None,
                place=place,
                source=source,
                deal=deal,
                ledger=restored.ledger if restored else Ledger(),
                node_planner=self.actor,
                meeting=Nobody(),
                device=cpu,
                pace=pace,
            )
            for place, (deal, _, _) in zip(places, starts, strict=True)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for loader in self.loaders:
            loader.close()
        for loader in self.loaders:
            if loader._stream is not None:
                loader._stream._feeder.join(10)
                assert not loader._stream._feeder.is_alive()
        self.actor.stop()

    def save(self, parent, nonce):
        """Write a checkpoint as a report does, and return its folder."""
        words = [loader.word() for loader in self.loaders]
        assert len({(word["step"], word["digest"]) for word in words}) == 1
        values = self.loaders[0].run_state(nonce, words)
        directory = parent / checkpoint_name(values)
        folder = loader_folder(directory, None)
        write_manifest(folder, values, write_state(folder, values))
        return directory


def place_of(rank, world_size, data_ranks=None):
    return Place(
        rank=rank,
        world_size=world_size,
        ranks_here=world_size,
        node_id="node",
        node_address="127.0.0.1",
        run_name="run",
        group="group",
        largest_world=world_size,
        worker_cpus=1.0,
        data_ranks=data_ranks,
    )
