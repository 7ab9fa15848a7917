"""Parts of `gpu.py`: waiting for data, training a model. Each yields rows and raises where it goes wrong."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import torch
from gpu_measures import Row, best_ms, device_of, documents, sizes, wait_for

# -- wait ------------------------------------------------------------------------------------------


def wait(tiny: bool) -> Iterator[Row]:
    """Train in Ray Train's local mode, where the loader and its stream are what they are in a worker."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from raypack.train import PackedData

    device = device_of()
    budget, steps, step_ms = sizes(tiny, device, (16_384, 600, 20.0), (256, 12, 20.0))
    with tempfile.TemporaryDirectory(prefix="raypack-gpu-") as work:
        _write_source(work + "/source", budget, sizes(tiny, device, 1000, 64))
        ray.init(
            include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False, logging_level="ERROR"
        )
        for backend in ("ray_data", "direct"):
            recipe = PackedData(
                source=work + "/source", maximum_tokens=budget, batches_per_step=1, epochs=10**6,
                max_steps=steps, backend=backend,
            )  # fmt: skip
            waits, walls = [], []
            TorchTrainer(
                lambda config: _timed_loop(recipe, device, step_ms, waits, walls),  # noqa: B023
                train_loop_config={},
                scaling_config=ScalingConfig(num_workers=0),
                run_config=RunConfig(name=backend, storage_path=work + "/runs"),
            ).fit()
            yield _wait_row(f"{backend}, {budget} tokens a batch", waits, walls, step_ms)
        ray.shutdown()


def _timed_loop(recipe, device: torch.device, step_ms: float, waits: list, walls: list) -> None:
    """Note what each step waits for its batch and what it takes, work of ``step_ms`` included."""
    from raypack.train import get_loader

    work = _work_of(device, step_ms)
    with get_loader(recipe, device=device) as loader:
        asked = time.perf_counter()
        for step in loader:
            for _ in step:
                waits.append(1e3 * (time.perf_counter() - asked))
                work()
            step.commit()
            walls.append(1e3 * (time.perf_counter() - asked))
            asked = time.perf_counter()


def _work_of(device: torch.device, step_ms: float):
    """Return what keeps the device, or else this thread, busy for so long, and waits for it."""
    if device.type != "cuda":
        return lambda: time.sleep(step_ms / 1e3)
    weight = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    times = max(1, round(step_ms / best_ms(lambda: [weight @ weight for _ in range(20)], device, 5) * 20))

    def work():
        for _ in range(times):
            weight @ weight
        wait_for(device)

    return work


def _wait_row(case: str, waits: list[float], walls: list[float], step_ms: float) -> Row:
    warm = len(waits) // 5
    later = sorted(waits[warm:])
    return {
        "case": case,
        "steps": len(waits),
        "first ms": round(waits[0], 1),
        "wait ms": round(statistics.median(later), 3),
        "p99": round(later[int(0.99 * (len(later) - 1))], 3),
        "greatest": round(later[-1], 3),
        "step ms": round(statistics.median(walls[warm:]), 2),
        "work ms": step_ms,
    }


def _write_source(path: str, budget: int, budgets: int) -> None:
    import pyarrow as pa

    from raypack.source import write_source

    lengths = documents(budget * budgets, min(400, budget // 4))
    lengths = np.minimum(lengths, budget)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids = np.random.default_rng(0).integers(0, 1000, offsets[-1], dtype=np.int32)
    write_source(path, [pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, ids)})])


# -- model -----------------------------------------------------------------------------------------


def model(tiny: bool) -> Iterator[Row]:
    """Train the same documents packed, by what `pick_attention` takes, and padded, by SDPA."""
    from raypack.collate import pick_attention

    device = device_of()
    budget, batches = sizes(tiny, device, (16_384, 12), (128, 2))
    config = _qwen3(sizes(tiny, device, True, False))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    choice = pick_attention(config, device, dtype=dtype)
    ways = {"packed": (choice.implementation, lambda batch, model: choice.export(batch, model))}
    if choice.implementation != "sdpa":
        ways["packed, SDPA"] = ("sdpa", lambda batch, model: batch.for_hf_sdpa(model))
    ways["padded"] = ("sdpa", lambda batch, model: batch.for_hf_sdpa(model))
    rates = {}
    for case, (attention, export) in ways.items():
        layout = case.split(",")[0]
        row = _trained(config, attention, export, dtype, device, _planned(layout, budget, batches, device))
        rates[case] = row["tokens/s"]
        yield {"case": f"{case} ({attention})", **row, "of padded": "-"}
    yield {"case": "packed against padded", "of padded": f"{rates['packed'] / rates['padded']:.2f}x"}


def _qwen3(full: bool):
    """Return the shape of Qwen3 0.6B, with a smaller vocabulary, or a tiny one."""
    from transformers import Qwen3Config

    shape = {"vocab_size": 32_768, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip
    small = {"vocab_size": 1024, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}  # fmt: skip
    return Qwen3Config(**(shape if full else small), max_position_embeddings=32_768)


def _planned(layout: str, budget: int, batches: int, device: torch.device) -> list:
    """Return the same documents as batches of a layout, each of at most ``budget`` token slots."""
    from raypack.batching import StepPlanner, TokenBatchOptions
    from raypack.collate import PackedBatch

    lengths = np.minimum(documents(budget * batches, min(400, budget // 4)), budget)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.random.default_rng(0).integers(0, 1000, starts[-1], dtype=np.int32)
    planner = StepPlanner(
        "bench", lengths, TokenBatchOptions(budget, None, layout), batches_per_step=10**6, seed=0
    )
    made = []
    for plan in planner.steps(0, 1)[0].batches:
        flat = np.concatenate([ids[starts[k] : starts[k + 1]] for k in plan.indices])
        made.append(
            PackedBatch.from_flat(
                flat,
                lengths[plan.indices],
                layout=layout,
                pad_to=budget if layout == "packed" else None,  # one shape, compiled once
                device=device,
            )
        )
    return made


def _trained(config, attention: str, export, dtype, device, batches) -> Row:
    """Train a fresh model on batches, once to warm up and once timed."""
    from transformers import AutoModelForCausalLM

    from raypack.collate.loss import next_token_loss_sum

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(device, dtype).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def train():
        for batch in batches:
            logits = model(**export(batch, model)).logits
            (next_token_loss_sum(logits, batch.labels) / batch.num_tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

    elapsed = best_ms(train, device, 1) / 1e3
    assert all(bool(p.isfinite().all()) for p in model.parameters()), (
        f"{attention}: parameters are not finite"
    )
    tokens, slots = sum(b.num_tokens for b in batches), sum(b.input_ids.numel() for b in batches)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    return {
        "batches": len(batches),
        "full": f"{tokens / slots:.1%}",
        "tokens/s": round(tokens / elapsed),
        "GiB": round(peak, 1),
    }
