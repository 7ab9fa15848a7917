"""The command line. Commands import what they need when they run, so that ``--help`` is quick."""

from __future__ import annotations

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

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except (RaypackError, OSError) as error:
            raise _Failure(" ".join(str(error).split())) from error


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


@main.command()
@click.argument("model", metavar="MODEL_OR_CONFIG")
@click.option("--device", help="Where to try it.  [default: cuda where there is some, else cpu]")
def doctor(model: str, device: str | None) -> None:
    """Show which ways of packing keep documents apart for a model.

    Builds a tiny random copy of the architecture and compares packed documents with each one alone, for
    every exporter that runs here and for what people do without one. MODEL_OR_CONFIG is a model's folder,
    its config.json, or a model type of transformers (llama, qwen3, ...). Nothing is downloaded. Exits with
    1 where the way that raypack picks is not proven.
    """
    from rich.console import Console

    from raypack.report.doctor import diagnose
    from raypack.report.tables import doctor_table

    diagnosis = diagnose(model, device)
    Console().print(doctor_table(diagnosis))
    if not diagnosis.ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
