"""What a model's own rounding does to its logits: measured by rounding at random (Monte Carlo arithmetic).

Two ways to compute the same logits differ by rounding. How much depends on the model: its depth, its
weights, and whether an expert is chosen by a hair. So it is measured on the model itself: each module's
output is moved by up to half a unit in the last place, at random (D. S. Parker, Monte Carlo Arithmetic,
UCLA CSD-970002, 1997), and the logits are compared with those of an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def rounded_at_random(module: torch.nn.Module, device: torch.device, seed: int) -> Iterator[None]:
    """Move the floating-point output of each innermost module by up to half a unit in the last place."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        unit = rounding_unit(value.dtype) / 2
        noise = torch.rand(value.shape, generator=generator, device=value.device, dtype=torch.float32)
        wide = value.double() if value.dtype in (torch.float32, torch.float64) else value.float()
        return (wide * (1 + unit * (2 * noise.to(wide.dtype) - 1))).to(value.dtype)

    def hook(_: torch.nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return tuple(moved(value) for value in output)
        return moved(output)

    innermost = [each for each in module.modules() if next(each.children(), None) is None]
    handles = [each.register_forward_hook(hook) for each in innermost]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def rounding_unit(dtype: torch.dtype) -> float:
    """Return the relative distance of neighbouring numbers.

    float64 counts as float32: transformers computes norms and softmaxes in float32 in any model.
    """
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
