"""What the parts of `gpu.py` share: devices, sizes, times, lengths."""

from __future__ import annotations

import time

import numpy as np
import torch

Row = dict


def device_of() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def sizes(tiny: bool, device: torch.device, large, small):
    """Return the large sizes on a GPU unless tiny ones are asked for."""
    return small if tiny or device.type != "cuda" else large


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def best_ms(work, device: torch.device, repeats: int) -> float:
    """Return the shortest time of ``work()`` in milliseconds, the first of them not counted."""
    times = []
    for _ in range(repeats + 1):
        wait_for(device)
        began = time.perf_counter()
        work()
        wait_for(device)
        times.append(1e3 * (time.perf_counter() - began))
    return min(times[1:])


def documents(tokens: int, median: int, seed: int = 0) -> np.ndarray:
    """Return lengths of a long-tailed mix of exactly so many tokens, int32."""
    drawn = np.random.default_rng(seed).lognormal(np.log(median), 0.8, 2 + 8 * tokens // median)
    ends = np.minimum(np.cumsum(np.clip(drawn, 1, tokens // 2).astype(np.int64)), tokens)
    return np.diff(np.concatenate([[0], ends[: 1 + int(np.argmax(ends == tokens))]])).astype(np.int32)
