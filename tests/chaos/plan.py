"""What happens in a chaotic run: phases of different worlds, and who is killed when; from a seed alone."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass

WORLDS = (2, 4, 1, 3)
IN_WORKER = ("step", "commit", "report", "restore", "planner", "reader", "rendezvous")
"""Moments and victims that a train worker sees to itself: before a commit, while it commits, while it
reports (and uploads), while it restores, its planner's process, its Ray Data reader's process, and the
process of the rendezvous of the ranks while they report."""
MOST_DELAY_S = {"commit": 0.003, "report": 0.08, "restore": 0.6, "rendezvous": 0.03}


@dataclass(frozen=True)
class Kill:
    """One death."""

    number: int
    kind: str
    """One of `IN_WORKER`, ``driver`` or ``node``."""
    step: int
    """After this step, or, for ``restore``, at the first start from there on."""
    rank: int
    """Whose, modulo the world size."""
    delay_s: float
    """How long after the moment has begun."""


@dataclass(frozen=True)
class Plan:
    """One chaotic run."""

    seed: int
    deal: str
    backend: str
    stops: tuple[int, ...]
    """The step after which each phase ends but the last."""
    kills: tuple[Kill, ...]

    def to_dict(self):
        """Return JSON values."""
        return asdict(self)


def plan_of(seed: int, *, steps: int, nodes: bool, kills: int = 6, deal: str | None = None) -> Plan:
    """Draw a plan.

    Args:
        seed: Of everything.
        steps: About how many steps the whole run has.
        nodes: Whether nodes may be lost too.
        kills: How many deaths there are at the most, beside that of the rendezvous.
        deal: ``global`` or ``rank``; None alternates with the seed.
    """
    dice = random.Random(seed)
    quarter = steps // len(WORLDS)
    kinds = [*IN_WORKER[:-1], "driver", *(["node"] if nodes else [])]
    victims = (dice.sample(kinds, k=min(len(kinds), 5)) + dice.choices(kinds, k=1))[:kills]

    def death(number: int, kind: str) -> Kill:
        return Kill(
            number=number,
            kind=kind,
            step=dice.randrange(2, steps - quarter // 2),
            rank=dice.randrange(4),
            delay_s=round(dice.random() * MOST_DELAY_S.get(kind, 0.0), 4),
        )

    deaths = [death(number, kind) for number, kind in enumerate(victims)]
    stops = tuple(quarter * (k + 1) + dice.randrange(-4, 5) for k in range(len(WORLDS) - 1))
    backend = dice.choice(("ray_data", "ray_data", "direct"))
    return Plan(
        seed=seed,
        deal=deal or ("global", "rank")[seed % 2],
        backend=backend,
        stops=stops,
        kills=(*deaths, death(len(deaths), "rendezvous")),
    )
