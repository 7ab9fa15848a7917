"""Exit of an actor that is no longer needed."""

from __future__ import annotations

import asyncio

import ray

GRACE_S = 3.0
"""Long enough for readers to ask once more and learn that the run has ended."""


async def exit_after_grace() -> None:
    """Kill the calling actor without a restart, once its current call has been answered."""
    await asyncio.sleep(GRACE_S)
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
