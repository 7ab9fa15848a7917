"""Which micro-batches of a step were trained: those whose loss a gradient has reached."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy.typing as npt
import torch

from raypack.errors import LoaderError

_EXAMPLES_NAMED = 8


class GradientFlags:
    """One flag for each micro-batch of one try of a step; a new try has flags of its own.

    The hook of a loss holds the flags of its own try, so that a late backward pass of an earlier try
    does not set flags of the current one.

    Args:
        micros: Micro-batches of the step.
    """

    def __init__(self, micros: int) -> None:
        self._reached = [False] * micros
        self._watched = False

    def watch(self, loss: torch.Tensor, micro: int) -> None:
        """Set the flag of a micro-batch once a gradient reaches its loss; the value is not read.

        A loss without a graph, as under ``no_grad`` or of detached logits, is not watched.
        """
        if loss.requires_grad:
            self._watched = True
            loss.register_hook(partial(self._reach, micro))

    def _reach(self, micro: int, _: torch.Tensor) -> None:
        self._reached[micro] = True

    def reached(self, micro: int) -> bool:
        """Return whether a gradient has reached the loss of a micro-batch."""
        return self._reached[micro]

    def check(self, step: int, examples: Sequence[npt.NDArray[Any]]) -> None:
        """Make sure that all batches were trained, or that nothing is known of any.

        Args:
            step: Number of the step.
            examples: The source indices of each micro-batch; one that is empty need not be trained.

        Raises:
            LoaderError: A gradient has reached some losses and not others, or none of those watched.
        """
        if not self._watched:
            return
        lacking = [k for k, held in enumerate(examples) if len(held) and not self._reached[k]]
        if not lacking:
            return
        first = lacking[0]
        named = ", ".join(str(int(i)) for i in examples[first][:_EXAMPLES_NAMED])
        more = ", ..." if len(examples[first]) > _EXAMPLES_NAMED else ""
        raise LoaderError(
            f"step {step} cannot be committed: no gradient has reached the loss of micro-batch {first} "
            f"(examples {named}{more}; {len(lacking)} of {len(examples)} micro-batches lack one). Call "
            "backward on step.loss(logits, batch), or on step.observe(loss, batch) for a loss of your own, "
            "for every batch with documents; compute a loss that is only logged under torch.no_grad(); end a "
            "step that is not to be trained with step.skip()"
        )
