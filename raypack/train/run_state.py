"""What a checkpoint holds of the data: the goal, where the plan stands, the source's summary, the ledger."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from raypack.arguments import integer, shown, text
from raypack.batching.state import TokenBatchState
from raypack.batching.step_state import StepPlannerState
from raypack.errors import CheckpointError
from raypack.train.goal import Goal
from raypack.train.ledger import Ledger, exact_fields
from raypack.train.rank_plan import RankPlan

FORMAT = "raypack run state"
VERSION = 1
DEALS = ("global", "rank")
_FIELDS = (
    "format",
    "version",
    "deal",
    "nonce",
    "world_size",
    "step",
    "source_path",
    "source",
    "goal",
    "plan",
    "ledger",
)


def state_values(
    *,
    deal: str,
    nonce: str,
    world_size: int,
    source_path: str,
    source: dict[str, Any],
    goal: Goal,
    plan: dict[str, Any],
    ledger: Ledger,
) -> dict[str, Any]:
    """Return the JSON values of a run's state; see `RunState`."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "deal": deal,
        "nonce": nonce,
        "world_size": world_size,
        "step": ledger.steps,
        "source_path": source_path,
        "source": source,
        "goal": goal.to_dict(),
        "plan": plan,
        "ledger": ledger.to_dict(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The data side of one checkpoint."""

    nonce: str
    """Drawn anew for each report; joins the files of one checkpoint."""
    world_size: int
    """Data ranks that reported."""
    source_path: str
    source: dict[str, Any]
    """The source's summary, so that a resume can say what changed."""
    goal: Goal
    """When the run is complete."""
    plan: StepPlannerState | RankPlan
    """Where the run stands: the global plan, or what is left of the ranks' shards."""
    ledger: Ledger

    def __post_init__(self) -> None:
        text("nonce", self.nonce, error=CheckpointError)
        integer("world_size", self.world_size, minimum=1, maximum=2**32, error=CheckpointError)
        text("source_path", self.source_path, error=CheckpointError)
        epochs = self.ledger.epochs
        trained = epochs[-1].steps if epochs and epochs[-1].epoch == self.plan.epoch else 0
        if trained != self.plan.steps:
            raise CheckpointError(
                f"the plan stands at step {self.plan.steps} of epoch {self.plan.epoch}, "
                f"the ledger has {trained} steps of it"
            )

    @property
    def deal(self) -> str:
        """``global`` or ``rank``."""
        return "rank" if isinstance(self.plan, RankPlan) else "global"

    @property
    def step(self) -> int:
        """Optimizer steps of the whole lineage."""
        return self.ledger.steps

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return state_values(
            deal=self.deal,
            nonce=self.nonce,
            world_size=self.world_size,
            source_path=self.source_path,
            source=self.source,
            goal=self.goal,
            plan=self.plan.to_dict(),
            ledger=self.ledger,
        )

    @classmethod
    def from_dict(cls, values: object, ranks: list[TokenBatchState] | None = None) -> RunState:
        """Check untrusted values and return the state.

        Args:
            values: What `to_dict` gave.
            ranks: Under the rank deal, the records of all ranks.

        Raises:
            CheckpointError: Something is missing, unknown, of a wrong type, or contradicts the rest.
        """
        record = check_kind(values)
        if not isinstance(record["source"], dict):
            raise CheckpointError(f"source must be an object, got {shown(record['source'])}")
        try:
            plan = record["plan"]
            state = cls(
                nonce=record["nonce"],
                world_size=record["world_size"],
                source_path=record["source_path"],
                source=record["source"],
                goal=Goal.from_dict(record["goal"]),
                plan=StepPlannerState.from_dict(plan) if ranks is None else RankPlan.of(plan, ranks),
                ledger=Ledger.from_dict(record["ledger"]),
            )
        except (TypeError, ValueError) as error:
            raise CheckpointError(str(error)) from error
        if state.step != record["step"]:
            raise CheckpointError(f"step must be {state.step}, the ledger's, got {shown(record['step'])}")
        return state


def check_kind(values: object) -> dict[str, Any]:
    """Return a run state's fields, once format, version and deal are known ones.

    Raises:
        CheckpointError: They are not.
    """
    record = exact_fields(values, list(_FIELDS), FORMAT)
    if record["format"] != FORMAT or record["version"] != VERSION or record["deal"] not in DEALS:
        kind = [record[name] for name in ("format", "version", "deal")]
        raise CheckpointError(
            f"must be a {FORMAT!r} of version {VERSION} with the deal {' or '.join(DEALS)}, got {shown(kind)}"
        )
    return record


def canonical(values: Any) -> str:
    """Return JSON text that is the same for equal values."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(values: Any) -> str:
    """Return the hex digest of JSON values, 128 bits."""
    return hashlib.blake2b(canonical(values).encode(), digest_size=16).hexdigest()


def sealed(values: dict[str, Any]) -> bytes:
    """Return values as a JSON file that carries a digest of itself."""
    return (json.dumps({**values, "digest": digest_of(values)}, indent=1, allow_nan=False) + "\n").encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """Return the values of a file that `sealed` wrote.

    Raises:
        CheckpointError: It is cut short, no JSON, or was changed afterwards.
    """
    try:
        values = json.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"is no complete JSON file ({error})") from error
    if not isinstance(values, dict) or "digest" not in values:
        raise CheckpointError("carries no digest of itself")
    digest = values.pop("digest")
    try:
        present = digest_of(values)
    except ValueError as error:
        raise CheckpointError(f"holds a number that JSON has not ({error})") from error
    if digest != present:
        raise CheckpointError(f"was changed after it was written: its digest says {shown(digest)}")
    return values
