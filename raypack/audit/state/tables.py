"""What a checkpoint holds, and what ranks would get of it, as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raypack.audit.state.reshard import GlobalShares, Reshard
from raypack.audit.state.show import StateView
from raypack.audit.tables import lineage_table, refused_lines
from raypack.checkpoint.ledger import EpochEntry

_MOST_ROWS = 32
_UNKNOWN = "not known"


def state_table(view: StateView) -> RenderableType:
    """Return what one loader's part of a checkpoint holds."""
    state, epochs = view.state, view.state.ledger.epochs
    parts = [
        _facts(f"loader {view.name!r}" if view.name else "state", _state_facts(view)),
        _facts("source", _source_facts(view)),
        _facts("plan", view.plan()),
        _facts("left of the epoch", _left_facts(view)),
    ]
    parts += [lineage_table(state.ledger.attempts)] * bool(state.ledger.attempts)
    parts += [_epochs(epochs)] * bool(epochs)
    lines = [line for entry in epochs for line in refused_lines(entry.epoch, entry.refused)]
    return Group(Text(f"checkpoint {view.checkpoint}"), *parts, *map(Text, lines), _files(view))


def loaders_table(views: list[StateView]) -> RenderableType:
    """Return the loaders of a checkpoint, a line each."""
    table = _table("loaders", "name", "deal", "data ranks", "step", "epoch", "examples left of it")
    for view in views:
        state = view.state
        numbers = (state.world_size, state.step, state.plan.epoch, view.left.examples)
        table.add_row(Text(view.name or "(none)"), state.deal, *map(_number, numbers))
    return Group(Text(f"checkpoint {views[0].checkpoint}"), table)


def reshard_table(result: Reshard) -> RenderableType:
    """Return what each rank would get."""
    head = (
        f"step {result.step:,}, epoch {result.epoch}, {result.deal} deal: "
        f"{result.was:,} -> {result.world_size:,} data ranks"
    )
    parts: list[RenderableType] = [Text(f"checkpoint {result.checkpoint}"), Text(head)]
    if result.source_fault:
        parts.append(Text(f"source {result.source_fault}"))
    if result.deals is not None:
        parts += [_facts("of each step", _deal_facts(result.deals))]
        parts.append(Text("nothing needs rewriting: any number of workers goes on from this checkpoint"))
        return Group(*parts)
    return Group(*parts, _shares(result), *_proof(result))


def _state_facts(view: StateView) -> dict[str, Any]:
    state = view.state
    cursor = ", ".join(f"{name} {_number(value)}" for name, value in view.cursor().items())
    return {
        "deal": state.deal,
        "report_id": state.report_id,
        "data ranks": state.world_size,
        "step": state.step,
        "epoch": state.plan.epoch,
        "goal": ", ".join(f"{name} {_number(value)}" for name, value in state.goal.to_dict().items()),
        "cursor": cursor,
    }


def _source_facts(view: StateView) -> dict[str, Any]:
    facts = view.source()
    fault = facts.pop("fault")
    prepared = facts.pop("prepared")
    facts["prepared"] = ", ".join(f"{k} {v}" for k, v in prepared.items()) if prepared else None
    return {**facts, "now": fault or "readable, and the same"}


def _left_facts(view: StateView) -> dict[str, Any]:
    left, ranks = view.left, view.state.world_size
    steps = f"steps on {ranks:,} data ranks" if view.state.deal == "rank" else "steps"
    planned = {"batches": left.batches, steps: left.steps}
    known = {name: _UNKNOWN if value is None else value for name, value in planned.items()}
    return {"examples": left.examples, "tokens": left.tokens, **known}


def _epochs(entries: tuple[EpochEntry, ...]) -> Table:
    headings = ("epoch", "steps", "examples trained", "tokens", "steps begun again", "steps skipped")
    table = _table("epochs", *headings)
    for entry in entries:
        receipt, refused = entry.receipt, entry.refused
        numbers = (entry.epoch, entry.steps, receipt.examples, receipt.tokens, refused.retries, refused.steps)
        table.add_row(*map(_number, numbers))
    return table


def _files(view: StateView) -> Table:
    table = _table("files", "name", "bytes")
    shown = view.files if len(view.files) <= _MOST_ROWS else view.files[: _MOST_ROWS // 2]
    for name, size in shown:
        table.add_row(Text(name), _number(size))
    rest = view.files[len(shown) :]
    if rest:
        table.add_row(f"{len(rest):,} more", _number(sum(size for _, size in rest)))
    count, size = view.others
    table.add_row(f"not raypack's: {count:,}", _number(size))
    return table


def _shares(result: Reshard) -> Table:
    table = _table("shares", "rank", "examples", "batches", "tokens")
    shown = result.shares if len(result.shares) <= _MOST_ROWS else result.shares[: _MOST_ROWS // 2]
    for share in shown:
        table.add_row(*map(_number, (share.rank, share.examples, share.batches, share.tokens)))
    if len(shown) < len(result.shares):
        table.add_row("...", *[""] * 3)
    sums = [
        None if any(value is None for value in column) else sum(column)
        for column in zip(*((s.examples, s.batches, s.tokens) for s in result.shares), strict=True)
    ]
    table.add_row("all", *map(_number, sums))
    return table


def _proof(result: Reshard) -> list[RenderableType]:
    proof = result.proof
    if proof is None:
        return []
    lines: list[RenderableType] = []
    if result.steps is not None:
        lines.append(Text(f"steps left of the epoch: {result.steps:,}"))
    counts = (
        f"left {proof.left.examples:,} examples (hash {proof.left.hash:016x}), dealt "
        f"{proof.dealt.examples:,} (hash {proof.dealt.hash:016x}); twice {proof.doubled:,}, "
        f"missing {proof.missing:,}, trained before {proof.foreign:,}"
    )
    verdict = (
        "[bold green]each example left to exactly one rank[/]" if proof.ok else "[bold red]NOT proven[/]"
    )
    lines += [Text(counts), f"reshard: {verdict}"]
    if result.written:
        lines.append(Text(f"written {result.written}"))
    return lines


def _deal_facts(deals: GlobalShares) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "batches": deals.batches_per_step,
        "micro-batches of a rank": deals.micro_batches,
        "of these empty": f"{deals.idle:.1%}",
    }
    if deals.next_good != deals.batches_per_step:
        facts["batches a step that would fill them"] = deals.next_good
    if deals.imbalance:
        mean, most = sum(deals.imbalance) / len(deals.imbalance), max(deals.imbalance)
        name = f"max/mean attention cost of ranks, next {len(deals.imbalance)} steps"
        facts[name] = f"mean {mean:.3f}, most {most:.3f}"
    return facts


def _facts(title: str, facts: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), Text(_number(value)))
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
