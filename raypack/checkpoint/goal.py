"""The goal of a run: what it must train to be complete; recorded in every checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from raypack.arguments import integer, optional_integer
from raypack.checkpoint.ledger import exact_fields
from raypack.errors import CheckpointError

_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """When a run is complete; the latest one that was recorded holds, since a resume may change it.

    Whatever else may end a run on purpose belongs here, so that an audit can tell a run that is done
    from one that was cut short.
    """

    epochs: int
    """Epochs of the source."""
    max_steps: int | None = None
    """Optimizer steps after which the run ends, if it has not before; None is no limit."""

    def __post_init__(self) -> None:
        put, wrong = object.__setattr__, CheckpointError
        put(self, "epochs", integer("goal.epochs", self.epochs, minimum=1, maximum=_LIMIT, error=wrong))
        steps = optional_integer("goal.max_steps", self.max_steps, minimum=1, maximum=_LIMIT, error=wrong)
        put(self, "max_steps", steps)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: object) -> Goal:
        """Check untrusted values and return the goal.

        Raises:
            CheckpointError: A field is missing, unknown or out of range.
            TypeError: A field is of a wrong type.
        """
        return cls(**exact_fields(values, ("epochs", "max_steps"), "goal"))
