"""Parts of `gpu.py`: masks, isolation, transfer. Each yields rows and raises where what it shows is wrong."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from gpu_measures import Row, best_ms, device_of, documents, sizes, wait_for

# -- masks -----------------------------------------------------------------------------------------


def masks(tiny: bool) -> Iterator[Row]:
    device = device_of()
    lengths, repeats = sizes(tiny, device, ((1024, 4096, 16_384, 32_768, 65_536), 20), ((64, 192), 2))
    for length in lengths:
        for count in (1, 16, 128):
            for dtype in (torch.bfloat16, torch.float32, torch.bool):
                case = f"S={length} {count} documents {str(dtype).removeprefix('torch.')}"
                needed = 2 * length * length * dtype.itemsize
                if device.type == "cuda":
                    torch.cuda.empty_cache()  # what earlier sizes left counts as free
                if device.type == "cuda" and needed > torch.cuda.mem_get_info(device)[0]:
                    yield {"case": case, "skipped": f"needs {needed >> 30} GiB, more than is free"}
                else:
                    yield {"case": case, **_mask_row(length, min(count, length), dtype, device, repeats)}


def _mask_row(length: int, count: int, dtype: torch.dtype, device: torch.device, repeats: int) -> Row:
    from raypack.collate import build_attention_mask

    offsets = torch.from_numpy(np.linspace(0, length, count + 1).astype(np.int32))
    there = offsets.to(device)
    _check_rows(build_attention_mask(there, length, dtype)[0, 0], offsets, dtype)
    tensor = torch.empty((length, length), dtype=dtype, device=device)
    filled = best_ms(lambda: tensor.fill_(0), device, repeats)
    ours = best_ms(lambda: build_attention_mask(there, length, dtype), device, repeats)
    written = length * length * dtype.itemsize / 1e6
    return {
        "fill_ ms": round(filled, 3),
        "mask ms": round(ours, 3),
        "of fill_": f"{filled / ours:.0%}",
        "GB/s": round(written / ours, 1),
    }


def _check_rows(mask: torch.Tensor, offsets: torch.Tensor, dtype: torch.dtype) -> None:
    """Compare rows at random, and all at the edges of documents, with the rule itself, on the host."""
    length = mask.shape[0]
    owners = torch.repeat_interleave(offsets.diff().long())
    some = torch.randint(length, (64,), generator=torch.Generator().manual_seed(0))
    rows = torch.cat([some, offsets[:-1].long(), offsets[1:].long() - 1]).unique()
    seen = (owners[rows][:, None] == owners[None, :]) & (torch.arange(length)[None, :] <= rows[:, None])
    got = mask[rows.to(mask.device)].cpu()
    blocked = False if dtype is torch.bool else torch.finfo(dtype).min
    expected = torch.where(
        seen, torch.tensor(dtype is torch.bool, dtype=dtype), torch.tensor(blocked, dtype=dtype)
    )
    wrong = (got != expected).nonzero()
    assert not len(wrong), (
        f"S={length} {dtype}: {len(wrong)} cells are wrong, the first of row {rows[wrong[0][0]]}"
    )


# -- isolation -------------------------------------------------------------------------------------


HALF, BOTH = (torch.bfloat16,), (torch.float32, torch.bfloat16)


def isolation(tiny: bool) -> Iterator[Row]:
    """Prove each exporter on documents of all lengths, with padding; all of them before the first fault."""
    from raypack.collate import PackedBatch, assert_isolated

    device, faults = device_of(), []
    lengths = documents(sizes(tiny, device, 4000, 120), 60)
    ids = np.random.default_rng(0).integers(3, 64, int(lengths.sum()), dtype=np.int32)
    batch = PackedBatch.from_flat(ids, lengths, pad_to_multiple=128, device=device)
    for name, dtypes, obstacle, make, export in _ways(device):
        for dtype in dtypes:
            case = f"{name} {str(dtype).removeprefix('torch.')}"
            if obstacle is not None:
                yield {"case": case, "skipped": obstacle}
                continue
            try:
                called = make(dtype)
                worst = assert_isolated(called, batch, export=lambda b: export(b, called))  # noqa: B023
            except Exception as error:  # the other ways are tried first
                faults.append(f"{case}: {type(error).__name__}: {error}")
                yield {"case": case, "outcome": f"FAILED: {type(error).__name__}"}
            else:
                yield {"case": case, "outcome": f"isolated, {worst:.1e} of the largest logit"}
    assert not faults, "; ".join(faults)


def _ways(device: torch.device) -> Iterator[tuple]:
    """Yield name, dtypes, what speaks against it here, how to make a model of a dtype, and the export."""
    from raypack.audit.doctor.plain_layers import PlainLayer, flex_layer, varlen_layer, varlen_obstacle
    from raypack.audit.doctor.tiny_model import load_config, tiny_model
    from raypack.collate import PackedBatch

    def qwen3(attention):
        return lambda dtype: tiny_model(load_config("qwen3"), attention, dtype, device)

    def layer(attend):
        return lambda dtype: PlainLayer(attend, device, dtype)

    def with_ids(export):
        return lambda batch, _: {"input_ids": batch.input_ids, **export(batch)}

    here = None if device.type == "cuda" else f"it needs CUDA, the device is {device.type}"
    flash = here or (None if importlib.util.find_spec("flash_attn") else "flash_attn is not installed")
    yield "for_hf_sdpa", BOTH, None, qwen3("sdpa"), lambda b, model: b.for_hf_sdpa(model)
    yield "for_hf_eager", BOTH, None, qwen3("eager"), lambda b, model: b.for_hf_eager(model.dtype, model)
    yield "for_hf_flash", HALF, flash, qwen3("flash_attention_2"), lambda b, _: b.for_hf_flash()
    compiled = here and f"{here}; compiling for that takes long and shows little"
    flex = qwen3("flex_attention")  # transformers compiles it
    yield "for_hf_flex, compiled", BOTH, compiled, flex, lambda b, model: b.for_hf_flex(model)
    yield "for_flex", BOTH, None, layer(flex_layer), with_ids(PackedBatch.for_flex)
    yield "for_flex, compiled", BOTH, compiled, layer(_compiled_flex()), with_ids(PackedBatch.for_flex)
    obstacle = varlen_obstacle(device)
    yield "for_torch_varlen", HALF, obstacle, layer(varlen_layer), with_ids(PackedBatch.for_torch_varlen)


def _compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=True)

    def attend(x, block_mask):
        rows = x.transpose(0, 1)[None]
        return compiled(rows, rows, rows, block_mask=block_mask)[0].transpose(0, 1)

    return attend


# -- transfer --------------------------------------------------------------------------------------


def transfer(tiny: bool) -> Iterator[Row]:
    from torch.profiler import ProfilerActivity, profile

    device = device_of()
    tokens, width, steps = sizes(tiny, device, (131_072, 4096, 12), (256, 64, 3))
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    _train_on(device, tokens, width, 3)  # allocates, loads kernels
    with profile(activities=activities) as trace:
        _train_on(device, tokens, width, steps)
    if device.type != "cuda":
        yield {"case": f"{steps} batches", "skipped": "only CUDA has streams; the loop itself has run"}
        return
    with tempfile.TemporaryDirectory() as work:
        trace.export_chrome_trace(f"{work}/trace.json")
        found = overlap_of(json.loads(Path(work, "trace.json").read_text())["traceEvents"])
    yield {"case": f"{steps} batches of {tokens} tokens", **found}
    assert found["copies aside"], "no copy to the device lies on another stream than the kernels"
    assert found["pageable"] == 0, "copies are made of pageable memory, for which the host waits"
    assert found["overlapped us"] > 0, "no copy overlaps a kernel of the train loop"


def _train_on(device: torch.device, tokens: int, width: int, steps: int) -> None:
    """Take batch after batch and multiply matrices meanwhile, as a step does."""
    from raypack.collate import PackedBatch
    from raypack.collate.transfer import DevicePrefetcher, streams_of

    lengths = documents(tokens, 400)
    rows = [np.random.default_rng(k).integers(0, 1000, tokens, dtype=np.int32) for k in range(steps)]
    prefetcher = DevicePrefetcher(
        lambda ids: PackedBatch.from_flat(ids, lengths, device=device), streams_of(device)
    )
    weight = torch.randn(width, width, device=device)
    table = torch.randn(1000, width, device=device)
    for k, row in enumerate(rows):
        batch = prefetcher.take(row)
        work = table[batch.input_ids[0, :width]]
        if k + 1 < steps:
            prefetcher.start(rows[k + 1])
        for _ in range(8):
            work = work @ weight
    wait_for(device)


def overlap_of(events: list[dict]) -> Row:
    """Return how much of a trace's copies to the device lies beside kernels of the busiest other stream.

    Args:
        events: Of a Chrome trace: ``cat``, ``name``, ``ts`` and ``dur`` in microseconds, ``args.stream``.
    """
    spans = [e for e in events if e.get("ph") == "X"]
    kernels = [e for e in spans if e.get("cat") == "kernel"]
    copies = [e for e in spans if e.get("cat") == "gpu_memcpy" and "HtoD" in e["name"]]
    busy = {}
    for event in kernels:
        busy[event["args"]["stream"]] = busy.get(event["args"]["stream"], 0) + event["dur"]
    main = max(busy, key=busy.get, default=None)
    aside = [e for e in copies if e["args"]["stream"] != main]
    beside = sum(
        max(0.0, min(c["ts"] + c["dur"], k["ts"] + k["dur"]) - max(c["ts"], k["ts"]))
        for c in aside
        for k in kernels
        if k["args"]["stream"] == main
    )
    return {
        "copies": len(copies),
        "copies aside": len(aside),
        "pageable": sum("Pageable" in e["name"] for e in aside),
        "copied us": round(sum(e["dur"] for e in aside), 1),
        "overlapped us": round(beside, 1),
    }
