"""Dense masks: against filling the same tensor, and against the straightforward numpy way.

    python bench/bench_masks.py [--lengths 2048 8192] [--documents 1 16 128] [--repeats 7]

Time is the best of the repeats. Peak memory is the process's high-water mark above what it held before,
as a multiple of the mask's own size (Linux). On a machine with CUDA the mask there is timed too.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from raypack.collate import build_attention_mask
from raypack.packing import build_4d_attention_mask, segment_ids

DTYPES = [torch.float32, torch.bfloat16, torch.bool]


def best(make, repeats, device="cpu"):
    """Return the shortest time of ``make()`` in milliseconds."""
    times = []
    for _ in range(repeats):
        synchronize(device)
        started = time.perf_counter()
        make()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return 1e3 * min(times)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def memory(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def peak(make):
    """Return the bytes that ``make()`` needed at its peak, its result included."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    made = make()
    del made
    return memory("VmHWM") - before


def straightforward(ids):
    """Every step as an S×S array of its own, chosen in float64, then cast."""
    same = ids[:, None] == ids[None, :]
    real = (ids != 0)[:, None] & (ids != 0)[None, :]
    causal = np.tril(np.ones((len(ids), len(ids)), dtype=bool))
    chosen = np.where(same & real & causal, 0.0, float(np.finfo(np.float32).min))
    return chosen.astype(np.float32)[None, None]


def filled(length, dtype, device):
    value = False if dtype is torch.bool else torch.finfo(dtype).min
    return torch.empty((1, 1, length, length), dtype=dtype, device=device).fill_(value)


def offsets_of(length, documents):
    return torch.from_numpy(np.linspace(0, length, documents + 1).astype(np.int32))


def row(length, documents, dtype, repeats, device):
    offsets = offsets_of(length, documents).to(device)

    def ours():
        return build_attention_mask(offsets, length, dtype)

    floor = best(lambda: filled(length, dtype, device), repeats, device)
    mine = best(ours, repeats, device)
    size = length * length * dtype.itemsize
    held = f"{peak(ours) / size:7.2f}" if device == "cpu" else "      -"
    name = str(dtype).removeprefix("torch.")
    print(f"{device:5}{length:7}{documents:6}  {name:9}{floor:9.2f}{mine:9.2f}{mine / floor:8.2f}{held}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--documents", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; times in ms")
    print("device   S  docs  dtype        fill_     ours   ratio   peak (× the mask)")
    for device in devices:
        for length in options.lengths:
            for documents in options.documents:
                for dtype in DTYPES:
                    row(length, documents, dtype, options.repeats, device)
    print("\nnumpy, float32, 16 documents: straightforward against raypack")
    for length in options.lengths:
        ids = segment_ids(np.diff(offsets_of(length, 16).numpy()))
        offsets = offsets_of(length, 16)
        slow = best(lambda ids=ids: straightforward(ids), 3)
        reference = best(lambda ids=ids: build_4d_attention_mask(ids[None], np.float32), 3)
        fast = best(lambda o=offsets, n=length: build_attention_mask(o, n, torch.float32), 3)
        held = peak(lambda ids=ids: straightforward(ids)) / (4 * length * length)
        print(
            f"S={length}: straightforward {slow:.1f} ms at {held:.2f}× memory, packing {reference:.1f} ms "
            f"({slow / reference:.0f}×), collate {fast:.1f} ms ({slow / fast:.0f}×)"
        )


if __name__ == "__main__":
    main()
