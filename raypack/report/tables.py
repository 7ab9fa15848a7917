"""The audit as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raypack.report.audit import Audit
from raypack.train.ledger import Attempt, Refused


def audit_table(audit: Audit) -> RenderableType:
    """Return the lineage, the epochs and the findings of an audit."""
    lineage = lineage_table(audit.attempts)
    epochs = Table(title="epochs", title_justify="left")
    for heading in ("epoch", "steps", "examples trained", "of", "tokens", "fill", "audit"):
        epochs.add_column(heading, justify="right")
    for epoch in audit.epochs:
        numbers = (epoch.epoch, epoch.steps, epoch.trained, epoch.examples, epoch.tokens)
        epochs.add_row(
            *(f"{number:,}" for number in numbers), f"{epoch.fill:.1%}", _word(epoch.complete, epoch.findings)
        )
    read = [f"checkpoint {audit.checkpoint}"] if audit.checkpoint else []
    read += [line for epoch in audit.epochs for line in refused_lines(epoch.epoch, epoch.refused)]
    verdict = "[bold green]every example exactly once[/]" if audit.ok else "[bold red]NOT proven[/]"
    tables = [table for table in (lineage, epochs) if table.rows]
    # As Text: brackets of a path or a finding are no markup.
    return Group(*tables, *map(Text, (*read, *audit.findings)), f"audit: {verdict}")


def lineage_table(attempts: Iterable[Attempt]) -> Table:
    """Return which workers trained which steps."""
    lineage = Table(title="lineage", title_justify="left")
    for heading in ("attempt", "workers", "first step", "last step", "steps", "batches a step", "budget"):
        lineage.add_column(heading, justify="right")
    for attempt in attempts:
        last = attempt.first_step + attempt.steps - 1
        stretch = (attempt.number, attempt.world_size, attempt.first_step, last, attempt.steps)
        row = (*stretch, attempt.batches_per_step, attempt.options.maximum_tokens)
        lineage.add_row(*(f"{number:,}" for number in row))
    return lineage


def refused_lines(epoch: int, refused: Refused) -> list[str]:
    """Say which steps of an epoch the optimizer did not take at once, or not at all."""
    lines = []
    if refused.retries:
        lines.append(f"epoch {epoch}: steps were begun again {refused.retries:,} times")
    if refused.steps:
        held = f"{refused.receipt.examples:,} examples of {refused.receipt.tokens:,} tokens"
        names = ", ".join(map(str, refused.numbers)) + (", ..." * (refused.steps > len(refused.numbers)))
        lines.append(f"epoch {epoch}: {refused.steps:,} steps skipped, {held} not trained: steps {names}")
    return lines


def _word(complete: bool, findings: tuple[str, ...]) -> str:
    if findings:
        return "FAILED"
    return "complete" if complete else "so far"
