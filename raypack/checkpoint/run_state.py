"""The data state in a checkpoint: the goal, the position of the plan, the source's summary, the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raypack.arguments import integer, shown, text
from raypack.batching.rank.state import TokenBatchState
from raypack.batching.steps.state import StepPlannerState
from raypack.checkpoint.goal import Goal
from raypack.checkpoint.ledger import Ledger, exact_fields
from raypack.checkpoint.one_story import check_story
from raypack.checkpoint.rank_bounds import most_positions
from raypack.checkpoint.rank_plan import RankPlan
from raypack.choices import DEALS
from raypack.errors import CheckpointError
from raypack.source.paths.location import CONTROL

FORMAT = "raypack run state"
VERSION = 1
_FIELDS = (
    "format",
    "version",
    "deal",
    "report_id",
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
    report_id: str,
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
        "report_id": report_id,
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

    report_id: str
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
        text("report_id", self.report_id, error=CheckpointError)
        integer("world_size", self.world_size, minimum=1, maximum=2**32, error=CheckpointError)
        checked_path(self.source_path)
        check_story(self)

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
            report_id=self.report_id,
            world_size=self.world_size,
            source_path=self.source_path,
            source=self.source,
            goal=self.goal,
            plan=self.plan.to_dict(),
            ledger=self.ledger,
        )

    @classmethod
    def from_dict(
        cls,
        values: object,
        ranks: list[TokenBatchState] | None = None,
        examples: int | None = None,
    ) -> RunState:
        """Check untrusted values and return the state.

        Args:
            values: What `to_dict` gave.
            ranks: Under the rank deal, the records of all ranks.
            examples: Examples of the source that is open, which bound what is allocated; None where
                none is.

        Raises:
            CheckpointError: Something is missing, unknown, of a wrong type, or contradicts the rest.
        """
        record = check_kind(values)
        if not isinstance(record["source"], dict):
            raise CheckpointError(f"source must be an object, got {shown(record['source'])}")
        try:
            plan = record["plan"]
            state = cls(
                report_id=record["report_id"],
                world_size=record["world_size"],
                source_path=record["source_path"],
                source=record["source"],
                goal=Goal.from_dict(record["goal"]),
                plan=(
                    StepPlannerState.from_dict(plan)
                    if ranks is None
                    else RankPlan.of(plan, ranks, most_positions(examples))
                ),
                ledger=Ledger.from_dict(record["ledger"]),
            )
        except (TypeError, ValueError) as error:
            raise CheckpointError(str(error)) from error
        if state.step != record["step"]:
            raise CheckpointError(f"step must be {state.step}, the ledger's, got {shown(record['step'])}")
        return state


def checked_path(path: object) -> str:
    """Return the path of a source as a checkpoint holds it, once it is text without control characters.

    Raises:
        CheckpointError: It is not.
    """
    try:
        place = text("source_path", path, error=CheckpointError)
    except TypeError as error:
        raise CheckpointError(str(error)) from error
    if CONTROL.search(place):
        raise CheckpointError(f"source_path must hold no control characters, got {shown(place)}")
    return place


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
