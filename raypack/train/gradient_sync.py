"""When gradients are reduced over ranks: in the last micro-batch of a step alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


def gradient_sync(model: Any, last: bool) -> AbstractContextManager[Any]:
    """Return the context for a micro-batch's forward and backward pass.

    Args:
        model: Wrapped by DDP (``no_sync``), by FSDP2 (``set_requires_gradient_sync``), or plain.
        last: Whether the step ends with this micro-batch.
    """
    if hasattr(model, "set_requires_gradient_sync"):
        return _fsdp_sync(model, last)
    if hasattr(model, "no_sync") and not last:
        context: AbstractContextManager[Any] = model.no_sync()
        return context
    return nullcontext()


@contextmanager
def _fsdp_sync(model: Any, last: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(last)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
