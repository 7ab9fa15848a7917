"""Accelerate on Ray Train: raypack gives the batches, Accelerate holds model, optimizer and precision.

    pip install accelerate && python examples/accelerate_loop.py     # --gpu: two workers with a GPU each

Of Accelerate, two things stay off, since raypack does them: no data loader goes through ``prepare`` (it
would shard and count batches that are dealt and counted already), and ``gradient_accumulation_steps`` stays
1 (``backward`` would divide the loss once more; ``step.sync`` says when gradients are exchanged, in place
of ``accelerator.accumulate``).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import ray.train.torch
import torch
from accelerate import Accelerator
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import raypack
import raypack.train


def train(config: dict) -> None:
    """Run on every worker; restores itself at any number of them."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=not config["gpu"], mixed_precision="bf16" if config["gpu"] else "no")
    bare = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256))  # each byte from the one before it
    model, optimizer = accelerator.prepare(bare, torch.optim.AdamW(bare.parameters(), lr=1e-2))
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            states = torch.load(Path(directory) / "model.pt", map_location="cpu")
        accelerator.unwrap_model(model).load_state_dict(states[0])
        optimizer.load_state_dict(states[1])

    def save(directory: str) -> None:  # called on every rank; their files join one checkpoint
        if accelerator.is_main_process:
            states = [accelerator.get_state_dict(model), optimizer.state_dict()]
            accelerator.save(states, Path(directory) / "model.pt")

    with raypack.train.get_loader(config["recipe"], device=accelerator.device) as loader:
        for step in loader:
            total = torch.zeros((), device=accelerator.device)
            for batch in step:
                with step.sync(model, batch):
                    loss = step.loss(model(batch.input_ids), batch)
                    accelerator.backward(loss)
                total += loss.detach()
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step.commit()
            stop = step.index == config["stop_at"]
            if stop or step.index % 20 == 19 or loader.progress == 1.0:
                mean = accelerator.reduce(total, "mean").item()  # each part is scaled by the number of ranks
                raypack.train.report({"loss": mean}, loader, save=save)
            if stop:
                return


def fit(recipe: raypack.train.PackedData, storage: Path, workers: int, gpu: bool, stop_at: int = -1):
    """Train on some number of workers, from the run's last checkpoint if there is one."""
    return TorchTrainer(
        train,
        train_loop_config={"recipe": recipe, "gpu": gpu, "stop_at": stop_at},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name="accelerate",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=3),  # 0, the default, ends with the first lost worker
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            callbacks=[raypack.train.RaypackCallback()],
        ),
    ).fit()


def story(storage: Path, gpu: bool) -> bool:
    """Train half of an epoch on two workers and the rest on one; return whether the audit proves it."""
    files = sorted(map(str, Path(asyncio.__file__).parent.glob("*.py")))
    options = {"tokenizer": "bytes", "max_length": 512, "oversize": "split"}
    source = raypack.prepare(files, str(storage / "source"), **options)
    recipe = raypack.train.PackedData(source=source.path, maximum_tokens=2048, batches_per_step=4)
    first = fit(recipe, storage, 2, gpu, stop_at=recipe.count_steps() // 2)
    last = fit(recipe, storage, 1, gpu)
    audit = raypack.verify(storage / "accelerate")
    (epoch,) = audit.epochs
    losses = [result.metrics["loss"] for result in (first, last)]
    print("loss {:.3f} on 2 workers, {:.3f} at the end on 1".format(*losses))
    print(f"{epoch.trained} of {epoch.examples} examples: {audit.findings or audit.verdict}")
    return audit.ok


def main() -> int:
    flags = argparse.ArgumentParser(description="Accelerate on Ray Train with packed, elastic data.")
    flags.add_argument("--gpu", action="store_true", help="a GPU for each worker; a CPU otherwise")
    flags.add_argument("--storage", type=Path, help="an empty folder that every node sees; else temporary")
    args = flags.parse_args()
    ray.init(log_to_driver=False, **({} if args.gpu else {"num_cpus": 4, "include_dashboard": False}))
    with tempfile.TemporaryDirectory(prefix="raypack-") as temporary:
        return 0 if story(args.storage or Path(temporary), args.gpu) else 1


if __name__ == "__main__":
    sys.exit(main())
