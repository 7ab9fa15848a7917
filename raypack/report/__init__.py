"""Offline reports: the audit of a run, from one checkpoint and the source."""

from raypack.report.audit import verify
from raypack.report.verdict import Audit, EpochAudit

__all__ = ["Audit", "EpochAudit", "verify"]
