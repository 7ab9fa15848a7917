"""The errors of batches and masks on a device."""

from __future__ import annotations

from raypack.errors import RaypackError


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
