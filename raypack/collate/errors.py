"""The errors of batches and masks on a device."""

from raypack.errors import RaypackError


class BatchError(RaypackError, ValueError):
    """Documents, labels or sizes that cannot become a batch or a mask; the message names the fault."""


class IsolationError(RaypackError, AssertionError):
    """A model lets one packed document see another; the message names both."""
