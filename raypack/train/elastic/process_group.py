"""The torch process group of a run's processes."""

from __future__ import annotations

import torch

from raypack.errors import LoaderError


def require_group(world_size: int, why: str) -> None:
    """Make sure that a default process group of all ranks exists.

    Args:
        world_size: Processes.
        why: What needs it, the beginning of the message.

    Raises:
        LoaderError: There is none, or one of another size.
    """
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() != world_size:
        raise LoaderError(f"{why} needs a torch process group of its {world_size} ranks: use TorchTrainer")
