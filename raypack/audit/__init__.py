"""Offline reports: the audit of a run, from one checkpoint and the source."""

from raypack.audit.run_audit import verify
from raypack.audit.verdict import Audit, EpochAudit

__all__ = ["Audit", "EpochAudit", "verify"]
