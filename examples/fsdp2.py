"""FSDP2 and a sharded checkpoint: trained on three workers, stopped, gone on with on two, audited.

    python examples/fsdp2.py            # on CPUs; --gpu on a machine with three of them

The model's and the optimizer's shards and the data's state are one Ray Train checkpoint. Each rank writes
its own shards; PyTorch's distributed checkpoint cuts them anew for another number of workers, and raypack
deals the rest of the epoch anew: no example is lost or repeated, and the optimizer steps are the same.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import ray.train.torch
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import raypack
import raypack.train
from raypack.train.sharded import load_sharded, save_sharded

VOCABULARY = 256  # the tokens are bytes
MAX_LENGTH = 512  # tokens; longer documents are split


class LanguageModel(nn.Module):
    """A small causal language model; attention stays inside of each packed document."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(MAX_LENGTH, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, batch: raypack.PackedBatch) -> torch.Tensor:
        x = self.tokens(batch.input_ids) + self.positions(batch.position_ids)
        mask = raypack.build_attention_mask(segment_ids=batch.segment_ids, dtype=x.dtype, pad_rows="self")
        for layer in self.layers:
            x = layer(x, src_mask=mask[0, 0])
        return self.head(x)


def train(config: dict) -> None:
    """Run on every worker; restores itself at any number of them."""
    device = ray.train.torch.get_device()
    mesh = init_device_mesh(device.type, (ray.train.get_context().get_world_size(),))
    torch.manual_seed(0)
    model = LanguageModel().to(device)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if checkpoint := ray.train.get_checkpoint():
        state = state_of(model, optimizer)
        load_sharded(checkpoint, state)  # in place: the parts of it that this rank holds now
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])

    def save(directory: str) -> None:  # called on every rank; their files join one checkpoint
        save_sharded(state_of(model, optimizer), directory)

    with raypack.train.get_loader(config["recipe"]) as loader:  # restores itself
        for step in loader:
            total = torch.zeros((), device=device)
            for batch in step:
                with step.sync(model, batch):  # gradients are reduced in the last micro-batch alone
                    loss = step.loss(model(batch), batch)
                    loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            step.commit()
            stop = step.index == config["stop_at"]
            if stop or step.index % 10 == 9 or loader.progress == 1.0:
                torch.distributed.all_reduce(total)  # each part is scaled by the number of ranks
                raypack.train.report({"loss": total.item() / mesh.size()}, loader, save=save)
            if stop:
                return


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """Return the shards that this rank holds; the same names at any number of workers."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optim": optimizer_state}


def fit(recipe: raypack.train.PackedData, storage: Path, workers: int, gpu: bool, stop_at: int = -1):
    """Train on some number of workers, from the run's last checkpoint if there is one."""
    return TorchTrainer(
        train,
        train_loop_config={"recipe": recipe, "stop_at": stop_at},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name="fsdp2",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=3),  # 0, the default, ends with the first lost worker
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            callbacks=[raypack.train.RaypackCallback()],
        ),
    ).fit()


def story(storage: Path, gpu: bool) -> bool:
    """Train half of an epoch on three workers and the rest on two; return whether the audit proves it."""
    files = sorted(map(str, Path(asyncio.__file__).parent.glob("*.py")))[:12]
    options = {"tokenizer": "bytes", "max_length": MAX_LENGTH, "oversize": "split"}
    source = raypack.prepare(files, str(storage / "source"), **options)
    recipe = raypack.train.PackedData(
        source=source.path,
        maximum_tokens=2 * MAX_LENGTH,
        batches_per_step=12,  # 4 on each of three workers, 6 on each of two: the same steps
    )
    half = recipe.count_steps() // 2
    first = fit(recipe, storage, 3, gpu, stop_at=half)
    last = fit(recipe, storage, 2, gpu)
    audit = raypack.verify(storage / "fsdp2")
    (epoch,) = audit.epochs
    losses = [result.metrics["loss"] for result in (first, last)]
    print("loss {:.3f} on 3 workers, {:.3f} at the end on 2".format(*losses))
    print(f"{epoch.trained} of {epoch.examples} examples: {audit.findings or audit.verdict}")
    return audit.ok


def main() -> int:
    flags = argparse.ArgumentParser(description="FSDP2 with sharded checkpoints on Ray Train.")
    flags.add_argument("--gpu", action="store_true", help="a GPU for each worker; a CPU otherwise")
    flags.add_argument("--storage", type=Path, help="an empty folder that every node sees; else temporary")
    args = flags.parse_args()
    ray.init(log_to_driver=False, **({} if args.gpu else {"num_cpus": 4, "include_dashboard": False}))
    with tempfile.TemporaryDirectory(prefix="raypack-") as temporary:
        return 0 if story(args.storage or Path(temporary), args.gpu) else 1


if __name__ == "__main__":
    sys.exit(main())
