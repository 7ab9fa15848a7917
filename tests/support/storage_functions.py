"""A train function without a model, for runs that are about storage."""

import json
from pathlib import Path

import ray.train

from raypack.train import get_loader, report
from tests.support.failing_storage import opened


def train(config):
    """Take and commit all batches; reports every 4 steps, with weights of 64 KiB."""
    scratch = Path(config["scratch"])
    with get_loader(config["recipe"]) as loader:
        rank, upload = loader.worker.rank, config.get("upload", "sync")
        if "orders" in config and rank == 0:
            (scratch / "opened-by-get-loader").write_text(json.dumps(opened(config["orders"])))

        def save(directory):
            if rank == 0:
                (Path(directory) / "model.pt").write_bytes(b"w" * 65536)

        def send(metrics):
            try:
                report(metrics, loader, save=save, upload=upload)
            except Exception as error:
                (scratch / f"raised-{rank}").write_text(f"{type(error).__name__}: {error}")
                raise

        for step in loader:
            list(step)
            step.commit()
            if step.index % 4 == 3:
                send({"step": step.index})
            if step.index == config.get("stop_after"):
                return
        send({"step": loader.steps_done, "done": True, "checkpoint": ray.train.get_checkpoint() is not None})
