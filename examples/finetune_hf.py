"""Supervised fine-tuning of a Hugging Face causal language model on chats: packed, elastic, audited.

Without arguments it makes a tiny model, its tokenizer and some chats, and needs no network. With a model and
chats of your own, of one {"messages": [{"role": ..., "content": ...}, ...]} a line:

    python examples/finetune_hf.py
    python examples/finetune_hf.py --workers 1 2 --kill-after 5
    python examples/finetune_hf.py --model /models/smol --data chats.jsonl.gz --out /shared/sft \
        --workers 8 --gpu --lr 1e-5 --budget 16384 --batches-per-step 16 --report-every 100

Several numbers of workers are taken one after another: the run is stopped and resumed in between. The same
--out goes on with a run that was stopped. A checkpoint is itself a folder for from_pretrained.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import ray
import ray.train.torch
import rich
import torch
import transformers
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import raypack
import raypack.train
from raypack.audit.tables import audit_table

# What the assistant says, and the mark that ends it, is trained on; the rest of a chat is not.
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description="Fine-tunes a causal language model on chats, elastically.")
    flags.add_argument("--model", help="folder of a model and its tokenizer; a tiny random one unless told")
    flags.add_argument("--data", help="chats, .jsonl or .jsonl.gz; made up unless told")
    flags.add_argument("--eval", help="chats to evaluate on at the end; made up if --data is")
    flags.add_argument("--out", type=Path, help="folder of sources and run; a temporary one unless told")
    flags.add_argument("--workers", type=int, nargs="+", default=[2], metavar="N")
    flags.add_argument("--kill-after", type=int, default=-1, metavar="STEP", help="kill a worker there, once")
    flags.add_argument("--gpu", action="store_true", help="a GPU for each worker; half a CPU otherwise")
    flags.add_argument("--epochs", type=int, default=2)
    flags.add_argument("--lr", type=float, default=5e-3, help="highest learning rate; 1e-5 suits real models")
    flags.add_argument("--budget", type=int, default=512, help="tokens of a batch; longer chats are cut")
    flags.add_argument("--batches-per-step", type=int, default=4, help="over all workers, however many")
    flags.add_argument("--report-every", type=int, default=10, help="steps from checkpoint to checkpoint")
    return flags


# -- the model and the chats -----------------------------------------------------------------------


def make_chats(path: Path, count: int, seed: int) -> str:
    """Write chats of one to three questions about small numbers."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            messages = [{"role": "system", "content": "You add up."}]
            for _ in range(rng.randint(1, 3)):
                a, b = rng.randint(0, 9), rng.randint(0, 9)
                messages.append({"role": "user", "content": f"What is {a} and {b}?"})
                messages.append({"role": "assistant", "content": f"{a} and {b} is {a + b}."})
            file.write(json.dumps({"messages": messages}) + "\n")
    return str(path)


def make_model(folder: Path) -> str:
    """Save a tiny random Llama and a tokenizer of bytes with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|start|>", "<|end|>"]
    bytes_alone = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytes_alone, bos_token="<|start|>", eos_token="<|end|>", pad_token="<|end|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(tokens), **sizes)).save_pretrained(
        folder
    )
    return str(folder)


def open_or_prepare(out: Path, chats: str, model: str, budget: int) -> raypack.ArrowSource:
    """Open the source of some chats; make it where there is none."""
    if out.exists():
        return raypack.open_source(out)
    options = {"rows": "chat", "tokenizer": f"hf:{model}", "unsupervised": "drop"}
    return raypack.prepare(chats, out, **options, max_length=budget, oversize="truncate")


# -- on the workers --------------------------------------------------------------------------------


def load(folder: str, device: torch.device):
    """Load a model with the attention that keeps packed chats apart fastest on this device."""
    half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    attention = raypack.pick_attention(config, device, dtype=torch.bfloat16 if half else torch.float32)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention.implementation, local_files_only=True
    )
    return model.to(device).train(), attention


def logits(model: torch.nn.Module, attention, batch: raypack.PackedBatch) -> torch.Tensor:
    """Run the model, in bfloat16 where the device has it; the weights stay float32."""
    half = attention.evidence.dtype is torch.bfloat16
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=half):
        return model(**attention.export(batch, getattr(model, "module", model))).logits


def train(config: dict) -> None:
    """Run on every worker; a new attempt begins here again, on any number of them."""
    device, checkpoint = ray.train.torch.get_device(), ray.train.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else nullcontext(config["model"]) as folder:
        bare, attention = load(folder, device)
        optimizer = torch.optim.AdamW(bare.parameters(), weight_decay=0.0)
        if checkpoint:
            optimizer.load_state_dict(torch.load(f"{folder}/optimizer.pt", map_location=device))
    model = ray.train.torch.prepare_model(bare)

    def save(directory: str) -> None:  # called on every rank; their files join one checkpoint
        if loader.worker.rank == 0:
            bare.save_pretrained(directory)
            transformers.AutoTokenizer.from_pretrained(config["model"]).save_pretrained(directory)
            torch.save(optimizer.state_dict(), f"{directory}/optimizer.pt")

    with raypack.train.get_loader(config["recipe"]) as loader:  # restores itself
        metrics = {"attention": attention.implementation}
        for step in loader:
            for group in optimizer.param_groups:  # a schedule that no resize changes
                group["lr"] = config["lr"] * schedule(loader.progress)
            losses = []
            for batch in step:
                with step.sync(model, batch):
                    losses.append(step.loss(logits(model, attention, batch), batch))
                    losses[-1].backward()
            torch.nn.utils.clip_grad_norm_(bare.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step.commit()
            metrics |= {"steps": loader.steps_done, "loss": mean_loss(losses)}
            if step.index == config["kill_after"] and loader.worker.rank == loader.worker.world_size - 1:
                kill_once(config["killed"])
            if loader.steps_done >= config["stop_after"]:
                break
            if loader.steps_done % config["report_every"] == 0:
                raypack.train.report(metrics, loader, save=save)
        if config["held_out"] is not None:
            metrics["held_out_loss"] = evaluate(bare, attention, config["held_out"])
        raypack.train.report(metrics, loader, save=save)


def schedule(progress: float) -> float:
    """Return the part of the highest learning rate: a short warm-up, then half a cosine down to a tenth."""
    return min(1.0, (progress + 0.01) / 0.05) * (0.55 + 0.45 * math.cos(math.pi * progress))


def mean_loss(losses: list[torch.Tensor]) -> float:
    """Return the step's loss over all ranks, whose parts are scaled for DDP's mean."""
    total = torch.stack(losses).detach().sum()
    torch.distributed.all_reduce(total)
    return total.item() / torch.distributed.get_world_size()


@torch.no_grad()
def evaluate(model: torch.nn.Module, attention, recipe: raypack.train.PackedData) -> float:
    """Return the mean loss over the answers of other chats, each of them read by one rank."""
    evaluation = raypack.train.get_evaluation(recipe)
    model.eval()
    losses = [evaluation.loss(logits(model, attention, batch), batch) for batch in evaluation]
    return evaluation.mean(sum(losses))


def kill_once(marker: str) -> None:
    if not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)  # a spot node vanishes


# -- on the driver ---------------------------------------------------------------------------------


def fit(config: dict, out: Path, workers: int, gpu: bool) -> dict:
    """Train on some number of workers, from the run's last checkpoint if there is one."""
    trainer = TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name="run",
            storage_path=str(out / "runs"),
            failure_config=FailureConfig(max_failures=3),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            callbacks=[raypack.train.RaypackCallback()],
        ),
    )
    return trainer.fit().metrics


def finetune(args: argparse.Namespace, out: Path) -> bool:
    """Prepare, train on each number of workers in turn, audit, print it all; return whether it is proven."""
    model = args.model or make_model(out / "model")
    chats = args.data or make_chats(out / "chats.jsonl", 400, seed=0)
    held_out = args.eval or (None if args.data else make_chats(out / "held_out.jsonl", 60, seed=1))
    packed = {"maximum_tokens": args.budget, "batches_per_step": args.batches_per_step}
    source = open_or_prepare(out / "source", chats, model, args.budget)
    recipe = raypack.train.PackedData(source=source.path, epochs=args.epochs, **packed)
    if held_out:
        held_out = open_or_prepare(out / "held_out", held_out, model, args.budget)
        held_out = raypack.train.PackedData(source=held_out.path, **packed)
    steps = recipe.count_steps()
    print(
        f"{len(source):,} chats, {int(source.supervised.sum()):,} of their tokens trained on; {steps} steps"
    )
    config = {"model": model, "recipe": recipe, "held_out": held_out, "lr": args.lr}
    config |= {
        "report_every": args.report_every,
        "kill_after": args.kill_after,
        "killed": str(out / "killed"),
    }
    for turn, workers in enumerate(args.workers, start=1):
        config["stop_after"] = steps * turn // len(args.workers)
        metrics = fit(config, out, workers, args.gpu)
        print(
            f"{workers} workers: " + ", ".join(f"{name} {value}" for name, value in metrics.items()),
            flush=True,
        )
    audit = raypack.verify(out / "runs/run")
    rich.print(audit_table(audit))
    if args.out:
        print(f"from_pretrained({audit.checkpoint!r}) loads the model")
    return audit.ok


def main() -> int:
    args = parser().parse_args()
    ray.init(log_to_driver=False)  # a cluster's where there is one, else a local one
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        return 0 if finetune(args, args.out.absolute()) else 1
    with tempfile.TemporaryDirectory(prefix="raypack-") as out:
        return 0 if finetune(args, Path(out)) else 1


if __name__ == "__main__":
    sys.exit(main())
