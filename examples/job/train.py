"""A job for a Ray cluster: a source is made or opened, trained elastically, and the run audited.

    ray job submit --address http://HEAD:8265 --working-dir examples/job -- \
        python train.py --source /shared/corpus --storage /shared/runs --gpu

Submitted again under the same --run, whatever ended it before, it goes on from the last checkpoint on as
many workers as the cluster has then. Exit code 0: the audit proves that every example was trained exactly
once in every epoch. Source and storage lie where every node sees them; the job's own folder is no such place.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

import ray
import ray.train.torch
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import raypack
import raypack.train

MAX_LENGTH = 512  # tokens of an example; longer documents are split
VOCABULARY = 256  # the tokens are bytes


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description="Trains a small language model, elastically.")
    flags.add_argument("--source", required=True, help="path or URI of the source that every node sees")
    flags.add_argument("--documents", nargs="*", help="text and JSONL to make it of, if it is not there yet")
    flags.add_argument("--storage", required=True, help="path or URI of the runs that every node sees")
    flags.add_argument("--run", default="job", help="name of the run; the same name goes on with it")
    flags.add_argument("--workers", nargs=2, type=int, default=[1, 4], metavar=("MIN", "MAX"))
    flags.add_argument("--gpu", action="store_true", help="a GPU for each worker; a CPU otherwise")
    flags.add_argument("--backend", default="ray_data", help="direct: where workers may take every CPU")
    flags.add_argument("--epochs", type=int, default=1)
    flags.add_argument("--report-every", type=int, default=20, help="steps from checkpoint to checkpoint")
    return flags


# -- on the driver ---------------------------------------------------------------------------------


def open_or_prepare(path: str, documents: list[str] | None) -> raypack.ArrowSource:
    """Open the source; make it of the documents (Python's asyncio, unless told) where there is none."""
    try:
        return raypack.open_source(path)
    except raypack.SourceError as missing:
        print(f"{missing}; preparing it", flush=True)  # refused in turn where anything else lies there
    files = documents or sorted(map(str, Path(asyncio.__file__).parent.glob("*.py")))
    return raypack.prepare(files, path, tokenizer="bytes", max_length=MAX_LENGTH, oversize="split")


def recipe_of(args: argparse.Namespace) -> raypack.train.PackedData:
    return raypack.train.PackedData(
        source=args.source,
        maximum_tokens=2 * MAX_LENGTH,
        batches_per_step=8,  # whatever the number of workers: the same steps
        epochs=args.epochs,
        backend=args.backend,
    )


def fit(recipe: raypack.train.PackedData, args: argparse.Namespace) -> None:
    least, most = args.workers
    TorchTrainer(
        train,
        train_loop_config={"recipe": recipe, "report_every": args.report_every},
        scaling_config=ScalingConfig(
            num_workers=(least, most) if least < most else most,
            use_gpu=args.gpu,
            elastic_resize_monitor_interval_s=30,  # how soon nodes that join are taken in
        ),
        run_config=RunConfig(
            name=args.run,
            storage_path=args.storage,
            failure_config=FailureConfig(max_failures=10),  # 0, the default, ends with the first lost node
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            callbacks=[raypack.train.RaypackCallback()],
        ),
    ).fit()


def proven(run: str, epochs: int) -> bool:
    """Audit the run, print what it did, and return whether it is complete: every epoch is proven."""
    audit = raypack.verify(run)
    for attempt in audit.attempts:
        last = attempt.first_step + attempt.steps - 1
        print(f"attempt {attempt.number}: steps {attempt.first_step}-{last} on {attempt.world_size} workers")
    for epoch in audit.epochs:
        print(f"epoch {epoch.epoch}: {epoch.trained:,} of {epoch.examples:,} examples, {epoch.fill:.1%} full")
    for finding in audit.findings:
        print(f"FAULT: {finding}")
    complete = sum(epoch.complete for epoch in audit.epochs)
    print(f"audit: {complete} of {epochs} epochs complete, {'proven' if audit.ok else 'NOT proven'}")
    return audit.ok


# -- on the workers --------------------------------------------------------------------------------


class LanguageModel(nn.Module):
    """A causal language model; attention stays inside of each packed document."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(MAX_LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, batch: raypack.PackedBatch) -> torch.Tensor:
        x = self.tokens(batch.input_ids) + self.positions(batch.position_ids)
        mask = raypack.build_attention_mask(segment_ids=batch.segment_ids, dtype=x.dtype, pad_rows="self")
        return self.head(self.body(x, mask=mask[0, 0]))


def train(config: dict) -> None:
    """Run on every worker; a new attempt begins here again, on any number of them."""
    bare = LanguageModel()
    model = ray.train.torch.prepare_model(bare)  # to this worker's device, and DDP where there are several
    optimizer = torch.optim.AdamW(bare.parameters())
    restore(bare, optimizer)

    def save(directory: str) -> None:  # called on every rank; their files join one checkpoint
        if loader.worker.rank == 0:
            state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(directory) / "model.pt")

    with raypack.train.get_loader(config["recipe"]) as loader:  # restores itself
        for step in loader:
            for group in optimizer.param_groups:  # a schedule that no resize changes
                group["lr"] = 3e-3 * (1 - 0.9 * loader.progress)
            losses = []
            for batch in step:
                with step.sync(model, batch):
                    losses.append(step.loss(model(batch), batch))
                    losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
            step.commit()
            if loader.steps_done % config["report_every"] == 0 or loader.progress == 1.0:
                raypack.train.report(
                    {"steps": loader.steps_done, "loss": mean_loss(losses)}, loader, save=save
                )


def restore(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            state = torch.load(Path(directory) / "model.pt", map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


def mean_loss(losses: list[torch.Tensor]) -> float:
    """Return the step's loss over all ranks, whose parts are scaled for DDP's mean."""
    total = torch.stack(losses).detach().sum()
    torch.distributed.all_reduce(total)
    return total.item() / torch.distributed.get_world_size()


def main() -> int:
    # Ray Train's minute is what a run waits for a node that has just gone before it starts without it.
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "25")
    args = parser().parse_args()
    recipe = recipe_of(args)  # refuses a source in the job's own folder
    ray.init()  # the cluster that runs the job; a local Ray without one
    source = open_or_prepare(args.source, args.documents)
    print(f"{source!r}: training on {args.workers[0]} to {args.workers[1]} workers", flush=True)
    fit(recipe, args)
    return 0 if proven(f"{args.storage.rstrip('/')}/{args.run}", args.epochs) else 1


if __name__ == "__main__":
    sys.exit(main())
