"""The command line. Commands import what they need when they run, so that ``--help`` is quick."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from raypack.errors import RaypackError
from raypack.version import __version__

if TYPE_CHECKING:
    from raypack.data.prepare_options import PrepareCounts
    from raypack.source import ArrowSource

    Report = Callable[[PrepareCounts, int], None]

_COUNTS = {
    "bytes": "bytes read",
    "documents": "documents read",
    "empty": "empty, left out",
    "split": "too long, split",
    "pieces": "pieces of these",
    "truncated": "too long, truncated",
    "dropped": "too long, dropped",
    "examples": "examples written",
    "tokens": "tokens written",
}


class _Failure(click.ClickException):
    """Bad input: one line and exit code 2, as for bad usage."""

    exit_code = 2


class _Commands(click.Group):
    """A group whose commands end with one clear line, not a traceback, where the input is at fault."""

    failure: type[click.ClickException] = _Failure

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except (RaypackError, OSError) as error:
            raise self.failure(" ".join(str(error).split())) from error


class _StateCommands(_Commands):
    """Commands that end with 1 where a checkpoint is at fault."""

    failure = click.ClickException


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="raypack")
def main() -> None:
    """Elastic, token-budgeted, packed data loading for LLM training on Ray."""


@main.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--out", required=True, help="Folder or URI to make; nothing may lie there.")
@click.option(
    "--tokenizer",
    default="bytes",
    show_default=True,
    metavar="bytes|FILE|hf:FOLDER",
    help="UTF-8 bytes, a tokenizers JSON file, or a Hugging Face folder.",
)
@click.option("--text-field", default="text", show_default=True, help="Field of a JSON line with the text.")
@click.option(
    "--max-length", type=click.IntRange(min=1), help="Tokens of an example at the most.  [default: no limit]"
)
@click.option(
    "--oversize",
    type=click.Choice(["error", "split", "truncate", "drop"]),
    default="error",
    show_default=True,
    help="What to do with documents longer than --max-length.",
)
def prepare(
    inputs: tuple[str, ...], out: str, tokenizer: str, text_field: str, max_length: int | None, oversize: str
) -> None:
    """Tokenise text files and folders into a source.

    Each line of a .jsonl or .ndjson file is a document; any other file is one. Folders are walked, hidden
    files left out. Nothing is added to a document but what the tokenizer itself adds. Runs on the Ray
    cluster of RAY_ADDRESS, or on a local Ray of its own.
    """
    from raypack.data import prepare as run

    with _progress() as report:
        source = run(
            inputs,
            out,
            tokenizer=tokenizer,
            text_field=text_field,
            max_length=max_length,
            oversize=oversize,
            progress=report,
        )
    _show(source)


@contextmanager
def _progress() -> Iterator[Report | None]:
    """Show a bar of the bytes done, if someone is there to look at it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[documents]:,} documents, {task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting Ray", total=None, documents=0, rate=0.0)

        def report(counts: PrepareCounts, total: int) -> None:
            elapsed = bar.tasks[task].elapsed or 0.0
            bar.update(
                task,
                description="preparing",
                completed=counts.bytes,
                total=total,
                documents=counts.documents,
                rate=counts.documents / elapsed if elapsed else 0.0,
            )

        yield report


def _show(source: ArrowSource) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, label in _COUNTS.items():
        table.add_row(label, f"{source.manifest.counts[name]:,}")
    longest = source.manifest.longest
    table.add_row("longest example, tokens", f"{longest.length if longest is not None else 0:,}")
    Console().print(table)
    click.echo(f"source       {source.path}")
    click.echo(f"fingerprint  {source.fingerprint}")


@main.command()
@click.argument("run_dir")
@click.option("--source", help="Where the source lies now; by default where the run found it.")
@click.option("--name", help="Name of the loader, for runs with several.")
def verify(run_dir: str, source: str | None, name: str | None) -> None:
    """Prove that a run trained every example exactly once.

    Reads one checkpoint and the source, and starts no Ray. RUN_DIR is <storage_path>/<run name>, or one
    checkpoint in it. Exits with 1 where it is not proven.
    """
    from rich.console import Console

    from raypack.report import verify as run
    from raypack.report.tables import audit_table

    audit = run(run_dir, source=source, name=name)
    Console().print(audit_table(audit))
    if not audit.ok:
        raise SystemExit(1)


@main.group(cls=_StateCommands)
def state() -> None:
    """Look into a checkpoint, and deal it to another number of workers.

    Reads one checkpoint and starts no Ray. RUN_OR_CHECKPOINT is <storage_path>/<run name>, whose last
    checkpoint is taken, or one checkpoint; a path or URI. Exits with 1 where the checkpoint is at fault.
    """


@state.command()
@click.argument("run_or_checkpoint")
@click.option("--name", help="Name of the loader, for runs with several; they are listed without it.")
@click.option("--source", help="Where the source lies now; by default where the run found it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of the loaders.")
def show(run_or_checkpoint: str, name: str | None, source: str | None, as_json: bool) -> None:
    """Show what a checkpoint holds of the data, and what is left of its epoch."""
    from raypack.report.state_show import show as run

    views = run(run_or_checkpoint, name=name, source=source)
    if as_json:
        _print_json([view.to_dict() for view in views])
        return
    from rich.console import Console

    from raypack.report.state_tables import loaders_table, state_table

    Console().print(state_table(views[0]) if len(views) == 1 else loaders_table(views))


@state.command()
@click.argument("run_or_checkpoint")
@click.option("--world-size", required=True, type=click.IntRange(min=1), help="Workers to deal it to.")
@click.option("--name", help="Name of the loader, for runs with several.")
@click.option("--source", help="Where the source lies now; by default where the run found it.")
@click.option("--out", help="Local directory to write the new ranks' state into, under the rank deal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reshard(
    run_or_checkpoint: str,
    world_size: int,
    name: str | None,
    source: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Tell what each worker of another number would get, with the proof that it is all that is left.

    A run needs no such step: it goes on at any number of workers by itself.
    """
    from raypack.report.state_reshard import reshard as run

    result = run(run_or_checkpoint, world_size, name=name, source=source, out=out)
    if as_json:
        _print_json(result.to_dict())
    else:
        from rich.console import Console

        from raypack.report.state_tables import reshard_table

        Console().print(reshard_table(result))
    if not result.ok:
        raise SystemExit(1)


def _print_json(values: Any) -> None:
    click.echo(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
