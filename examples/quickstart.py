"""The whole path on real documents: text in, a killed and resumed Ray Train run out, audited.

Takes the Python standard library's own sources as documents, tokenises them, trains a small causal
transformer on two CPU workers, kills one of them in mid-epoch, goes on, stops, resumes on three
workers, finishes the epoch and proves that every document was trained exactly once.

    python examples/quickstart.py
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import ray
import ray.train.torch
import rich
import tokenizers
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from rich.table import Table

import raypack.train
from raypack import build_attention_mask, prepare, verify
from raypack.audit.tables import audit_table

VOCABULARY = 2048
MAX_LENGTH = 1024  # tokens; longer files are split, and counted
BUDGET = 1024  # tokens of a micro-batch
BATCHES_PER_STEP = 12  # 6 on each of two workers, 4 on each of three
REPORT_EVERY = 20
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "encodings", "pydoc_data"}


# -- the documents ---------------------------------------------------------------------------------


def standard_library() -> list[str]:
    """Return the paths of the standard library's modules, its test suites left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(root.rglob("*.py"))
    return [str(f) for f in files if not SKIPPED & set(f.relative_to(root).parts)]


def train_tokenizer(files: list[str], path: Path) -> None:
    """Train a small byte-level BPE on the documents themselves; nothing is downloaded."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train(files, vocab_size=VOCABULARY, min_frequency=2, show_progress=False)
    tokenizer.save(str(path))


# -- the model -------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """Attention and a feed-forward layer, both before a residual sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)])
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norms[1](x))


class Transformer(torch.nn.Module):
    """A causal transformer that sees one document at a time, however many are packed into a row."""

    def __init__(self, width: int = 64, heads: int = 2, layers: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(VOCABULARY, width)
        self.positions = torch.nn.Embedding(MAX_LENGTH, width)
        self.blocks = torch.nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = torch.nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            torch.nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, batch: raypack.PackedBatch) -> torch.Tensor:
        mask = build_attention_mask(segment_ids=batch.segment_ids, dtype=torch.bool, pad_rows="self")
        x = self.tokens(batch.input_ids) + self.positions(batch.position_ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x) @ self.tokens.weight.T


# -- the train function ----------------------------------------------------------------------------


def train(config: dict) -> None:
    """Run on every worker; restores itself at any number of workers."""
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            saved = torch.load(Path(directory) / "model.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    ddp = torch.nn.parallel.DistributedDataParallel(model)

    def save(directory: str) -> None:
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(directory) / "model.pt")

    with raypack.train.get_loader(config["recipe"]) as loader:
        rank = loader.worker.rank
        began, tokens = time.perf_counter(), 0
        for step in loader:
            loss = torch.zeros(())
            for batch in step:
                with step.sync(ddp, batch):
                    part = step.loss(ddp(batch), batch)
                    part.backward()
                loss += part.detach()
            optimizer.step()
            optimizer.zero_grad()
            step.commit()
            tokens += step.real_tokens
            if rank == 1 and step.index == config["die_at"] and not os.path.exists(config["died"]):
                Path(config["died"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)  # a spot node vanishes
            stop = step.index == config["stop_at"]
            if step.index % REPORT_EVERY == REPORT_EVERY - 1 or stop:
                raypack.train.report(metrics(step, loss, loader, tokens, began), loader, save=save)
            if stop:
                return
        raypack.train.report(metrics(step, loss, loader, tokens, began), loader, save=save)


def metrics(step, loss: torch.Tensor, loader, tokens: int, began: float) -> dict:
    """Return what a report tells: the step's mean loss over all ranks, and the attempt's speed."""
    torch.distributed.all_reduce(loss)  # each part is scaled by the world size
    world = torch.distributed.get_world_size()
    return {
        "step": step.index,
        "loss": loss.item() / world,
        "tokens": loader.tokens_done,
        "tokens_per_s": tokens / (time.perf_counter() - began),
    }


def fit(recipe: raypack.train.PackedData, work: Path, workers: int, die_at: int, stop_at: int):
    """Train with some number of workers, from the run's last checkpoint if there is one."""
    return TorchTrainer(
        train,
        train_loop_config={
            "recipe": recipe,
            "died": str(work / "died"),
            "die_at": die_at,
            "stop_at": stop_at,
        },
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            name="quickstart",
            storage_path=str(work / "runs"),
            failure_config=FailureConfig(max_failures=3),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            callbacks=[raypack.train.RaypackCallback()],
            worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
        ),
    ).fit()


# -- the story -------------------------------------------------------------------------------------


def main() -> int:
    """Run the story and print its table; 0 when the audit proves it."""
    began = time.perf_counter()
    work = Path(tempfile.mkdtemp(prefix="raypack-"))
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=400 << 20, log_to_driver=False)
    try:
        return story(work, began)
    finally:
        ray.shutdown()
        shutil.rmtree(work, ignore_errors=True)


def story(work: Path, began: float) -> int:
    """Prepare, train, be killed, stop, resume on another number of workers, audit."""
    files = standard_library()
    print(f"{len(files)} files of the standard library; training a tokenizer on them", flush=True)
    train_tokenizer(files, work / "tokenizer.json")
    source = prepare(
        files,
        str(work / "source"),
        tokenizer=str(work / "tokenizer.json"),
        max_length=MAX_LENGTH,
        oversize="split",
    )
    recipe = raypack.train.PackedData(
        source=source.path, maximum_tokens=BUDGET, batches_per_step=BATCHES_PER_STEP, seed=0
    )
    third = int(source.lengths.array.sum()) // (BUDGET * BATCHES_PER_STEP * 3)
    print(f"training on 2 workers; worker 1 is killed after step {third}", flush=True)
    first = fit(recipe, work, 2, die_at=third, stop_at=2 * third)
    print(f"stopped after step {first.metrics['step']}; resuming on 3 workers", flush=True)
    last = fit(recipe, work, 3, die_at=-1, stop_at=-1)
    audit = verify(work / "runs/quickstart")
    rich.print(audit_table(audit))
    rich.print(summary(files, source, audit, first, last, time.perf_counter() - began))
    proven = audit.ok and len(audit.attempts) == 3
    return 0 if proven else 1


def summary(files: list[str], source, audit, first, last, seconds: float) -> Table:
    """Return the story in one table."""
    counts = source.manifest.counts
    epoch = audit.epochs[0] if audit.epochs else None
    worlds = " → ".join(str(attempt.world_size) for attempt in audit.attempts)
    rows = {
        "documents": f"{len(files):,} files, {counts['empty']:,} of them empty",
        "examples": f"{len(source):,} ({counts['split']:,} files split into {counts['pieces']:,})",
        "tokens": f"{epoch.tokens:,}" if epoch else "-",
        "fill of the batches": f"{epoch.fill:.2%}" if epoch else "-",
        "optimizer steps": f"{epoch.steps:,}" if epoch else "-",
        "world sizes": f"{worlds} (one worker killed, then resized)",
        "tokens/s": f"{first.metrics['tokens_per_s']:,.0f} on 2, {last.metrics['tokens_per_s']:,.0f} on 3",
        "loss": f"{first.metrics['loss']:.3f} → {last.metrics['loss']:.3f}",
        "audit": f"{epoch.trained:,} of {epoch.examples:,} examples, each exactly once"
        if audit.ok and epoch
        else "FAILED: " + "; ".join(audit.findings or (audit.verdict,)),
        "time": f"{seconds:.0f} s",
    }
    table = Table(show_header=False, title="quickstart", title_justify="left")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


if __name__ == "__main__":
    sys.exit(main())
