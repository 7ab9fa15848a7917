"""Warms up kernels before they are needed: compiled once per machine, loaded once per process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.planner import StepPlanner
from raypack.sampling.orders.epoch_order import EpochOrder
from raypack.sampling.orders.permutation import TABLE_SIZE
from raypack.sampling.receipt import Receipt


def warm_planning(options: TokenBatchOptions, *, packing: str, shuffle: str) -> None:
    """Load or compile what planning an epoch takes.

    Args:
        options: Limits of the batches; the layout decides what is needed.
        packing: ``best_fit`` or ``greedy``; see `StepPlanner`.
        shuffle: ``full`` or ``block``; see `EpochOrder`.
    """
    EpochOrder(TABLE_SIZE + 1, seed=0, shuffle=shuffle).at([0])
    for seed in (None, 0):
        planner = StepPlanner(
            "warm", np.ones(2, np.int32), options, batches_per_step=1, packing=packing, seed=seed
        )
        planner.steps(0, 1)


def warm_receipts() -> None:
    """Load or compile what counting trained examples takes."""
    Receipt.of(0, np.zeros(1, np.int64), 1)


def in_background(work: Callable[[], None]) -> None:
    """Begin some work in a thread of its own; the process does not end before it is done."""
    threading.Thread(target=work, name="raypack-warm").start()
