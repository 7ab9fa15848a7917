"""Selects the packer of an epoch by the name of the packing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from raypack.arguments import optional_integer, shown
from raypack.batching.lengths import LengthTable
from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.committed_prefix import CommittedPrefix
from raypack.batching.steps.greedy_packer import GreedyPacker
from raypack.batching.steps.planned_batches import Packer
from raypack.batching.steps.windows import WindowPacker, window_of
from raypack.errors import SamplerError
from raypack.sampling.orders.epoch_order import EpochOrder


def packer_of(
    order: EpochOrder,
    lengths: LengthTable,
    options: TokenBatchOptions,
    supervised: npt.NDArray[Any] | None,
    *,
    window: int | None,
    repacked: tuple[CommittedPrefix, ...],
    position: int,
) -> Packer:
    """Return the packer of an epoch: of windows, or greedy where ``window`` is None.

    See `WindowPacker` for the arguments.
    """
    if window is None:
        return GreedyPacker(order, lengths, options, supervised)
    return WindowPacker(
        order, lengths, options, supervised, window=window, repacked=repacked, position=position
    )


def checked_window(
    packing: str, window: int | None, lengths: LengthTable, options: TokenBatchOptions
) -> int | None:
    """Return the window of a packing: the given one, `window_of` for None, None under greedy packing.

    Raises:
        SamplerError: It is below 1, or given under greedy packing.
    """
    window = optional_integer("window", window, minimum=1, maximum=2**62)
    if packing == "best_fit":
        return window or window_of(lengths, options)
    if window is not None:
        raise SamplerError(f"window must be None under greedy packing, got {shown(window)}")
    return None


def checked_supervised(supervised: npt.ArrayLike | None, count: int) -> npt.NDArray[Any] | None:
    """Return a table of label tokens as an array, or None.

    Raises:
        SamplerError: It is not one integer an example, shape (count,).
    """
    if supervised is None:
        return None
    table = np.asarray(supervised)
    if table.dtype.kind not in "iu" or table.shape != (count,):
        raise SamplerError(
            f"supervised must hold one integer an example, shape ({count},); "
            f"got {table.dtype} of shape {table.shape}"
        )
    return table


def check_same(what: str, recorded: object, present: object) -> None:
    """Refuse what a state was not planned from.

    Raises:
        SamplerError: The values differ.
    """
    if recorded != present:
        raise SamplerError(
            f"{what} must be what the state records, {shown(recorded)}; got {shown(present)}: "
            "resume with the source and options that the run began with"
        )
