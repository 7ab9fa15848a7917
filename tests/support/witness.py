"""A run that is resized, killed and damaged by order, and a callback that writes down what Ray calls."""

import json
import os
import signal
import time
from pathlib import Path

import torch
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy

from raypack.train import RaypackCallback, get_loader, report


class Witness(RaypackCallback):
    """Writes a line for each hook that Ray Train's controller calls, with what it did.

    Ray Train's elastic policy is told that there is room for one worker, and from the second report on
    for two; that the run is resized, and how, is Ray Train's own doing.
    """

    def __init__(self, place):
        super().__init__()
        self.place = place
        self.reports = 0

    def note(self, hook, **more):
        """Write a line down."""
        with open(f"{self.place}/hooks.jsonl", "a") as file:
            file.write(json.dumps({"hook": hook, "saves": self._saves, **more}) + "\n")

    def after_controller_start(self, train_run_context):
        super().after_controller_start(train_run_context)
        ElasticScalingPolicy._count_possible_workers = lambda policy, reserved: 1 + (self.reports >= 2)
        self.note("controller start")

    def after_controller_state_update(self, previous_state, current_state):
        super().after_controller_state_update(previous_state, current_state)
        self.note("state", state=type(current_state).__name__)

    def after_report(self, training_report, metrics):
        super().after_report(training_report, metrics)
        self.reports += 1
        if training_report.checkpoint is not None:  # a report of what is held already has none
            self.note("report", path=training_report.checkpoint.path, **training_report.metrics)

    def after_worker_group_start(self, worker_group):
        super().after_worker_group_start(worker_group)
        self.note("start", workers=len(self._workers))

    def before_worker_group_shutdown(self, worker_group):
        super().before_worker_group_shutdown(worker_group)
        self.note("shutdown", forgotten=self._workers is None)

    def before_controller_execute_failure_decision(self, failure_decision):
        super().before_controller_execute_failure_decision(failure_decision)
        self.note("failure", failed=self._failed)

    def before_controller_execute_resize_decision(self, resize_decision):
        asked = len(self.resizes)
        super().before_controller_execute_resize_decision(resize_decision)
        saves = [[s.workers, s.outcome, s.waited_s] for s in self.resizes[asked:]]
        self.note("resize", workers=resize_decision.num_workers, resizes=saves)


def train(config):
    """Train without a model, alone at some pace until the run is resized; the second rank dies once.

    What comes after is trained without reports.
    """
    place = Path(config["scratch"])
    with get_loader(config["recipe"]) as loader:
        world, rank, first = loader.worker.world_size, loader.worker.rank, loader.steps_done
        if rank == 0:
            with open(place / "starts", "a") as file:
                file.write(f"{world} {first}\n")
        for step in loader:
            list(step)
            if world > 1:
                torch.distributed.all_reduce(torch.ones(1))  # as gradients would be: ranks stay in step
            else:
                time.sleep(0.05)  # there must be steps left when the run is resized
            step.commit()
            if step.index % 8 == 7 and not (place / "died").exists():
                report({"step": step.index}, loader)
            if rank == 1 and step.index == first + 12:
                die_once(place / "died")
        report({"step": step.index, "done": True}, loader)


def die_once(marker):
    """Kill this process the first time, when the last report is registered."""
    if not marker.exists():
        marker.touch()
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)
