"""The train function of chaos: a small transformer that sees to its own deaths."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import ray
import ray.train
import torch

from raypack.train import get_loader, report
from tests.support.train_functions import TinyTransformer, kill_planner, process_of

REPORT_EVERY = 4


class Deaths:
    """The kills that are this rank's to do, each once in the whole run."""

    def __init__(self, place, kills, rank, world):
        self.place, self.rank, self.world = place, rank, world
        self.kills = [kill for kill in kills if kill["rank"] % world == rank]

    def due(self, kind, step):
        """Return the first kill of a kind that is due and was not done; it is marked as done."""
        for kill in self.kills:
            marker = self.place / f"kill-{kill['number']}"
            if kill["kind"] == kind and step >= kill["step"] and not marker.exists():
                marker.write_text(json.dumps({"step": step, "rank": self.rank, "world": self.world}))
                return kill
        return None

    def die(self, kind, step):
        """Kill this process if that is due, now or a moment later."""
        kill = self.due(kind, step)
        if kill is not None and kill["delay_s"]:
            threading.Timer(kill["delay_s"], _end).start()
        elif kill is not None:
            _end()

    def strike(self, loader, step):
        """Kill the planner's or the reader's process if that is due."""
        if self.due("planner", step):
            kill_planner(loader)
        if self.due("reader", step):
            for process in psutil.Process().parent().children():
                if "Read" in process.name() or "Read" in " ".join(process.cmdline()):
                    process.kill()

    def part(self, loader, step):
        """Kill the process of the rendezvous if that is due, a moment later."""
        kill = self.due("rendezvous", step)
        if kill is not None:
            rendezvous = process_of(loader.rendezvous._actor)
            threading.Timer(kill["delay_s"], os.kill, (rendezvous, signal.SIGKILL)).start()


def _end():
    os.kill(os.getpid(), signal.SIGKILL)


def train(config):
    """Train to ``stop_after`` or to the end; report every 4 steps."""
    place = Path(config["place"])
    context = ray.train.get_context()
    deaths = Deaths(place, config["kills"], context.get_world_rank(), context.get_world_size())
    model, progress = TinyTransformer(), place / "progress"
    checkpoint = ray.train.get_checkpoint()
    deaths.die("restore", len(progress.read_text().splitlines()) if progress.exists() else 0)
    if checkpoint:
        with checkpoint.as_directory() as directory:
            model.load_state_dict(torch.load(Path(directory) / "model.pt"))
    if deaths.world > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    plain = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with get_loader(config["recipe"]) as loader:

        def save(directory):
            if deaths.rank == 0:
                torch.save(plain.state_dict(), Path(directory) / "model.pt")

        index = -1
        for step in loader:
            index = step.index
            for batch in step:
                with step.sync(model, batch):
                    step.loss(model(batch), batch).backward()
            deaths.die("step", index)
            optimizer.step()
            optimizer.zero_grad()
            deaths.die("commit", index)
            step.commit()
            time.sleep(0.02)
            if deaths.rank == 0:
                with open(progress, "a") as file:
                    file.write(f"{index}\n")
            deaths.strike(loader, index)
            if index % REPORT_EVERY == REPORT_EVERY - 1:
                deaths.die("report", index)
                deaths.part(loader, index)
                report({"step": index}, loader, save=save)
            if index == config["stop_after"]:
                break
        report({"step": index}, loader, save=save)
