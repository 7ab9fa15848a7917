"""How an actor of raypack exits once nobody needs it."""

from __future__ import annotations

import asyncio

import ray

GRACE_S = 3.0
"""Long enough for readers to ask once more and be told that the run has ended."""


async def exit_after_grace() -> None:
    """End the calling actor for good, after the call in which it was decided has been answered."""
    await asyncio.sleep(GRACE_S)
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
