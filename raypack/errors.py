"""Every error that raypack raises on purpose.

Each also derives from a builtin exception, so that generic handlers catch it.
Wrong *types* of arguments raise plain ``TypeError``.
"""

from __future__ import annotations


class RaypackError(Exception):
    """Base of all raypack errors."""


class SamplerError(RaypackError, ValueError):
    """An order, plan or state breaks the contract of a sampler or planner."""


class SourceError(RaypackError, ValueError):
    """A source on disk is missing, damaged, changed or not what its manifest says."""


class PrepareError(RaypackError, ValueError):
    """Input that cannot be prepared; the message names the file and the line."""


class CheckpointError(RaypackError, ValueError):
    """A file of a checkpoint is missing, damaged, stale, foreign or cannot be written; it is named."""


class LoaderError(RaypackError, RuntimeError):
    """The train loop used the loader against its contract (a forgotten commit, a lone report)."""


class ResourceError(RaypackError, RuntimeError):
    """A run asks for workers or readers that the cluster can never hold."""


class StreamError(RaypackError, RuntimeError):
    """Examples cannot reach the train loop: no CPU for the reader, a dead actor, a wrong batch."""


class DegradedError(RaypackError, RuntimeError):
    """Only in strict mode (``RAYPACK_STRICT=1``): a failure that is otherwise logged, and the run goes on."""


class BatchError(RaypackError, ValueError):
    """Documents, labels or sizes that cannot become a batch or a mask; the message names the fault."""


class IsolationError(RaypackError, AssertionError):
    """A model lets one packed document see another; the message names both.

    Attributes:
        leaks: pairs (from, to) of documents from 0; from is None for padding. Empty where logits differ
            though no document's tokens move another's.
    """

    def __init__(self, message: str, leaks: tuple[tuple[int | None, int], ...] = ()) -> None:
        super().__init__(message)
        self.leaks = leaks

    def __reduce__(self) -> tuple[type[IsolationError], tuple[str, tuple[tuple[int | None, int], ...]]]:
        return type(self), (str(self), self.leaks)


class DoctorError(RaypackError, ValueError):
    """A model that the doctor cannot examine; the message says what to give instead."""
