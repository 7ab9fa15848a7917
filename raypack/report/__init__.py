"""Offline reports: the audit of a run, from one checkpoint and the source."""

from raypack.report.audit import Audit, EpochAudit, verify

__all__ = ["Audit", "EpochAudit", "verify"]
