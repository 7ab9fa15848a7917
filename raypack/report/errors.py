"""The errors of reports."""

from raypack.errors import RaypackError


class DoctorError(RaypackError, ValueError):
    """A model that cannot be looked at; the message says what to give instead."""
