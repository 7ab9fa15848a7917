"""Reports as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raypack.audit.verdict import COMPLETE, CONSISTENT, Audit
from raypack.checkpoint.ledger import Attempt, Refused

if TYPE_CHECKING:
    from raypack.audit.doctor.diagnosis import Diagnosis

_SAID = {
    "isolated": "keeps documents apart",
    "leaks": "LEAKS",
    "differs": "changes the logits",
    "cannot run": "is not proven, for it cannot run here",
}
_NOT_PROVEN = "[bold red]NOT proven[/]"
_VERDICTS = {
    COMPLETE: "[bold green]complete: every planned example exactly once[/]",
    CONSISTENT: "[bold yellow]consistent so far, but not complete[/]",
}
_COLOURS = {"isolated": "green", "leaks": "red", "differs": "red", "cannot run": "yellow"}


def audit_table(audit: Audit) -> RenderableType:
    """Return the lineage, the epochs, the findings and the verdict of an audit."""
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
    tables = [table for table in (lineage, epochs) if table.rows]
    lines = (*read, *goal_lines(audit), *audit.remarks, *audit.findings)
    # As Text: brackets of a path or a finding are no markup.
    return Group(*tables, *map(Text, lines), f"audit: {_VERDICTS.get(audit.verdict, _NOT_PROVEN)}")


def goal_lines(audit: Audit) -> list[str]:
    """Say what a run's goal is, what of it is not trained, and what the goal leaves out on purpose."""
    if audit.goal is None:
        return []
    goal, left = audit.goal, audit.not_trained
    limit = "" if goal.max_steps is None else f", {goal.max_steps:,} steps at the most"
    said = "reached" if audit.reached else "not reached yet"
    lines = [f"goal: {goal.epochs:,} {'epoch' if goal.epochs == 1 else 'epochs'}{limit}; {said}"]
    lines += [f"on purpose: {sentence}" for sentence in audit.left_out]
    if not audit.reached:
        steps = "" if left.steps is None else f", or {left.steps:,} more steps"
        lines.append(f"not trained yet: {left.examples:,} examples of the goal's epochs{steps}")
    if left.skipped_steps:
        lines.append(
            f"not trained: {left.skipped_examples:,} examples in {left.skipped_steps:,} skipped steps"
        )
    return lines


def lineage_table(attempts: Iterable[Attempt]) -> Table:
    """Return how many data ranks trained which steps."""
    lineage = Table(title="lineage", title_justify="left")
    for heading in ("attempt", "data ranks", "first step", "last step", "steps", "batches a step", "budget"):
        lineage.add_column(heading, justify="right")
    for attempt in attempts:
        last = attempt.first_step + attempt.steps - 1
        stretch = (attempt.number, attempt.world_size, attempt.first_step, last, attempt.steps)
        row = (*stretch, attempt.batches_per_step, attempt.options.maximum_tokens)
        lineage.add_row(*(f"{number:,}" for number in row))
    return lineage


def refused_lines(epoch: int, refused: Refused) -> list[str]:
    """Say which steps of an epoch were retried or skipped."""
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


def doctor_table(diagnosis: Diagnosis) -> RenderableType:
    """Return the ways that were tried, what is picked and why."""
    found = Table(
        title=f"a tiny {diagnosis.model_type} on {diagnosis.device}: packed against each document alone",
        title_justify="left",
    )
    for heading in ("way", "attention", "result", "detail"):
        found.add_column(heading, overflow="fold")
    for number, trial in enumerate(diagnosis.trials):
        last = number + 1 < len(diagnosis.trials) and diagnosis.trials[number + 1].exporter != trial.exporter
        picked = " (picked)" if trial is diagnosis.picked else ""
        outcome = Text(trial.outcome, style=_COLOURS[trial.outcome])
        cells = (Text(trial.method + picked), Text(trial.implementation), outcome, Text(trial.detail))
        found.add_row(*cells, end_section=last)
    reasons = Text("\n".join(f"  {reason}" for reason in diagnosis.reasons))
    return Group(found, Text("attention for the full model here:"), reasons, _verdict(diagnosis))


def _verdict(diagnosis: Diagnosis) -> Text:
    choice, picked = diagnosis.choice, diagnosis.picked
    if choice is None or picked is None:
        said = "pick_attention knows no way that keeps documents apart"
    else:
        call = f"batch.{choice.exporter} with attn_implementation={choice.implementation!r}"
        said = f"{call} {_SAID[picked.outcome]}"
    if not diagnosis.ok and diagnosis.proven:
        said += f"; proven here: {', '.join(diagnosis.proven)}"
    return Text(f"doctor: {said}", style="bold green" if diagnosis.ok else "bold red")
