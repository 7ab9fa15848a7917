"""The audit as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raypack.report.audit import Audit


def audit_table(audit: Audit) -> RenderableType:
    """Return the lineage, the epochs and the findings of an audit."""
    lineage = Table(title="lineage", title_justify="left")
    for heading in ("attempt", "workers", "first step", "last step", "steps"):
        lineage.add_column(heading, justify="right")
    for attempt in audit.attempts:
        last = attempt.first_step + attempt.steps - 1
        numbers = (attempt.number, attempt.world_size, attempt.first_step, last, attempt.steps)
        lineage.add_row(*(f"{number:,}" for number in numbers))
    epochs = Table(title="epochs", title_justify="left")
    for heading in ("epoch", "steps", "examples trained", "of", "tokens", "fill", "audit"):
        epochs.add_column(heading, justify="right")
    for epoch in audit.epochs:
        numbers = (epoch.epoch, epoch.steps, epoch.trained, epoch.examples, epoch.tokens)
        epochs.add_row(
            *(f"{number:,}" for number in numbers), f"{epoch.fill:.1%}", _word(epoch.complete, epoch.findings)
        )
    verdict = "[bold green]every example exactly once[/]" if audit.ok else "[bold red]NOT proven[/]"
    tables = [table for table in (lineage, epochs) if table.rows]
    read = [f"checkpoint {audit.checkpoint}"] if audit.checkpoint else []
    # As Text: brackets of a path or a finding are no markup.
    return Group(*tables, *map(Text, (*read, *audit.findings)), f"audit: {verdict}")


def _word(complete: bool, findings: tuple[str, ...]) -> str:
    if findings:
        return "FAILED"
    return "complete" if complete else "so far"
