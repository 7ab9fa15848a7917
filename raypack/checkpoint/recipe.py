"""The recipe of a run's data: everything that decides what is trained, in one frozen record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from raypack.arguments import choice, integer, optional_integer, shown
from raypack.batching.options import TokenBatchLayout, TokenBatchOptions
from raypack.batching.steps.assignment import AttentionCost
from raypack.checkpoint.goal import Goal
from raypack.checkpoint.one_story import MOST_WINDOW
from raypack.choices import BACKENDS, DEALS, PACKINGS, SHUFFLES
from raypack.errors import SamplerError, SourceError
from raypack.source import ArrowSource
from raypack.source.paths.job_folder import refuse_job_folder
from raypack.source.paths.location import CONTROL, absolute, refuse_secret

_BLOCK_TOKENS = 1 << 20
_BLOCK_ROWS = 64
_BLOCKS_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Pace:
    """How a rank's stream is cut and paced, in micro-batches."""

    block_rows: int
    """Micro-batches of a block."""
    ahead: int
    """How far the reader may be ahead of what is committed."""
    advance_every: int
    """Commits are sent to the planner once so many micro-batches were committed since the last time."""


@dataclass(frozen=True)
class Recipe:
    """The record of `raypack.PackedData`, which describes its fields; it asks no cluster and imports no Ray.

    Raises:
        SamplerError: A value is out of range.
        SourceError: The source lies in the working directory of a Ray job, which vanishes with the job.
        TypeError: A value is of a wrong type.
    """

    source: str | Path | ArrowSource
    maximum_tokens: int
    _: KW_ONLY
    maximum_examples: int | None = None
    layout: str | TokenBatchLayout = "packed"
    deal: str = "global"
    batches_per_step: int | None = None
    tokens_per_step: int | None = None
    packing: str | None = None
    window: int | None = None
    shuffle: str | None = None
    attention_cost: AttentionCost | Sequence[int] | None = None
    seed: int | None = 0
    epochs: int = 1
    max_steps: int | None = None
    ahead: int | None = None
    backend: str = "ray_data"

    def __post_init__(self) -> None:
        if not isinstance(self.source, (str, Path, ArrowSource)):
            raise TypeError(f"source must be a path or an ArrowSource, got {type(self.source).__name__}")
        refuse_secret(self.source_path, "every checkpoint")
        if CONTROL.search(self.source_path):
            raise SourceError(f"source must hold no control characters, got {shown(self.source_path)}")
        if not isinstance(self.source, ArrowSource):  # workers have another working directory
            object.__setattr__(self, "source", absolute(self.source))
            refuse_job_folder(self.source_path)
        self.options  # noqa: B018  checks the budget
        self.cost  # noqa: B018
        choice("deal", self.deal, DEALS)
        self._check_packing()
        choice("backend", self.backend, BACKENDS)
        if self.shuffle is not None:
            choice("shuffle", self.shuffle, SHUFFLES)
        optional_integer("batches_per_step", self.batches_per_step, minimum=1)
        optional_integer("tokens_per_step", self.tokens_per_step, minimum=1)
        if self.batches_per_step is not None and self.tokens_per_step is not None:
            raise SamplerError("batches_per_step and tokens_per_step say the same: give one of them")
        optional_integer("seed", self.seed, minimum=0, maximum=2**64 - 1)
        integer("epochs", self.epochs, minimum=1, maximum=2**62)
        optional_integer("max_steps", self.max_steps, minimum=1, maximum=2**62)
        optional_integer("ahead", self.ahead, minimum=1)

    def _check_packing(self) -> None:
        if self.packing is not None:
            choice("packing", self.packing, PACKINGS)
        if self.deal == "rank" and self.packing == "best_fit":
            raise SamplerError(
                "packing must be 'greedy' with deal='rank', where each rank packs its own shard, "
                "got 'best_fit'"
            )
        window = optional_integer("window", self.window, minimum=1, maximum=MOST_WINDOW)
        if window is not None and self.packing_kind == "greedy":
            raise SamplerError(f"window must be None under greedy packing, got {shown(window)}")

    @property
    def packing_kind(self) -> str:
        """``best_fit`` or ``greedy``."""
        return self.packing or ("greedy" if self.deal == "rank" else "best_fit")

    @property
    def source_path(self) -> str:
        """Path or URI of the source."""
        return self.source.path if isinstance(self.source, ArrowSource) else str(self.source)

    @property
    def options(self) -> TokenBatchOptions:
        """Budget and layout of a batch."""
        layout = TokenBatchLayout(choice("layout", self.layout, [kind.value for kind in TokenBatchLayout]))
        return TokenBatchOptions(self.maximum_tokens, self.maximum_examples, layout)

    @property
    def cost(self) -> AttentionCost:
        """Weights of the balance over ranks."""
        return AttentionCost.of(self.attention_cost)

    @property
    def goal(self) -> Goal:
        """When the run is complete."""
        return Goal(epochs=self.epochs, max_steps=self.max_steps)

    def order_of(self, source: ArrowSource) -> str:
        """Kind of the epoch's order, ``full`` or ``block``, for a source where the recipe leaves it open."""
        return self.shuffle or ("block" if source.prefers_blocks else "full")

    @property
    def step_batches(self) -> int | None:
        """Batches of a step where the recipe says it, else None."""
        if self.tokens_per_step is not None:
            return -(-self.tokens_per_step // self.maximum_tokens)
        return self.batches_per_step

    def pace(self, micro_batches: int) -> Pace:
        """Return the pace of the stream for steps of ``micro_batches`` a rank.

        A rank must be able to receive a whole step before it commits, so ``ahead`` covers a step, the
        block that its last micro-batch lies in, and the commits that have not been sent to the planner yet.
        One that is smaller than a step is raised to it: a run that loses workers has longer steps, and
        must go on.
        """
        rows = max(1, min(_BLOCK_ROWS, _BLOCK_TOKENS // self.maximum_tokens))
        if self.ahead is None:
            return Pace(rows, max(_BLOCKS_AHEAD * rows, 2 * micro_batches + 2 * rows), rows)
        ahead = max(self.ahead, micro_batches)
        rows = min(rows, ahead - micro_batches + 1)
        return Pace(rows, ahead, min(max(1, rows // 2), ahead - micro_batches - rows + 2))
