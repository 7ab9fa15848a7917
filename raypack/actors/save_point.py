"""How ranks that run freely agree on one step after which all of them save.

No rank may wait for another in the middle of a step, since the other may need it in a collective. So
each rank sends its step count and trains on; once all have, a step a little ahead is proposed. A rank
that has not passed that step accepts, and waits there for the others' answers. One that has passed it
refuses, and the ranks try again with a larger margin.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

MARGIN_STEPS = 2
"""Steps between the furthest rank and the first proposal; four times as many at each further try."""
SUPERSEDED = -1
"""The proposal of a try that another rank has given up: every rank is past it."""
PATIENCE_S = 10.0
"""How long a rank that has reached the proposed step waits for the answers of others."""


@dataclass(slots=True)
class SavePoint:
    """One try of ``world_size`` ranks to agree."""

    world_size: int
    attempt: int
    """How many tries there were before."""
    steps_done: dict[int, int] = field(default_factory=dict)
    """Steps that each rank had done when it was asked."""
    proposed: asyncio.Event = field(default_factory=asyncio.Event)
    accepted: set[int] = field(default_factory=set)
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: bool | None = None
    """Whether the ranks save; None while it is open."""
    slow: bool = False
    """Whether a step takes so long that the very next one can be agreed on."""
    superseded: bool = False
    """Whether a rank has moved on to a later try without the others, as after a restart of the actor."""

    @property
    def step(self) -> int:
        """The proposed step, once all ranks have sent their step counts."""
        if self.superseded:
            return SUPERSEDED
        margin = 1 if self.slow and not self.attempt else MARGIN_STEPS * 4**self.attempt
        return max(self.steps_done.values()) + margin

    async def propose(self, rank: int, step: int, slow: bool = False) -> int:
        """Record a rank's step count and wait for the proposal."""
        self.steps_done[rank] = step
        self.slow |= slow
        if len(self.steps_done) == self.world_size:
            self.proposed.set()
        await self.proposed.wait()
        return self.step

    def supersede(self) -> None:
        """Let ranks that still wait for the proposal go on to the next try."""
        if not self.proposed.is_set():
            self.superseded = True
            self.proposed.set()

    def answer(self, rank: int, accepts: bool) -> None:
        """Record a rank's answer: the first refusal decides, or else the last acceptance."""
        if accepts:
            self.accepted.add(rank)
        if not accepts or len(self.accepted) == self.world_size:
            self.settle(accepts)

    async def wait(self) -> bool:
        """Return whether the ranks save; a rank that does not answer in time is taken to refuse."""
        try:
            await asyncio.wait_for(self.decided.wait(), PATIENCE_S)
        except asyncio.TimeoutError:
            self.settle(False)
        return bool(self.outcome)

    def settle(self, outcome: bool) -> None:
        """Set the outcome, unless it is set already."""
        if self.outcome is None:
            self.outcome = outcome
            self.decided.set()
