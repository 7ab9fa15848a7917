"""Commands that make a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from raypack.data.ingest.counts import PrepareCounts
    from raypack.source import ArrowSource

    Report = Callable[[PrepareCounts, int], None]

_PREPARED = {
    "bytes": "bytes read",
    "documents": "documents read",
    "empty": "empty, left out",
    "split": "too long, split",
    "pieces": "pieces of these",
    "truncated": "too long, truncated",
    "dropped": "too long, dropped",
    "separated": "prompts tokenised separately",
    "unsupervised": "nothing to train on, dropped",
    "examples": "examples written",
    "tokens": "tokens written",
}


_INDEXED = {
    "files": "files",
    "rows": "rows",
    "empty": "empty, left out",
    "split": "too long, split",
    "pieces": "pieces of these",
    "truncated": "too long, truncated",
    "dropped": "too long, dropped",
    "examples": "examples",
    "tokens": "tokens",
}


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--out", required=True, help="Folder or URI to make; nothing may lie there.")
@click.option(
    "--rows",
    type=click.Choice(["text", "prompt", "chat", "tokens"]),
    default="text",
    show_default=True,
    help="What a row is: text, prompt and completion, chat messages, or input_ids in Parquet.",
)
@click.option(
    "--tokenizer",
    default="bytes",
    show_default=True,
    metavar="bytes|FILE|hf:FOLDER|tiktoken:NAME",
    help="UTF-8 bytes, a file of tokenizers, sentencepiece (.model) or tiktoken (.tiktoken), a Hugging Face "
    "folder, or an encoding of tiktoken.",
)
@click.option("--text-field", default="text", show_default=True, help="Column with the text of rows text.")
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="ROLE=COLUMN",
    help="Column of another role: --field prompt=question --field completion=answer.",
)
@click.option(
    "--train-on",
    type=click.Choice(["answers", "last_answer", "all"]),
    default="answers",
    show_default=True,
    help="Tokens of a prompt or a chat to train on.",
)
@click.option(
    "--unsupervised",
    type=click.Choice(["error", "drop"]),
    default="error",
    show_default=True,
    help="What to do with examples without a token to train on.",
)
@click.option(
    "--on-token-merge",
    type=click.Choice(["error", "separate"]),
    default="error",
    show_default=True,
    help="What to do where a prompt's tokens merge with its completion's.",
)
@click.option("--bos", metavar="yes|no|TOKEN", help="Token before a text.  [default: the tokenizer's own]")
@click.option(
    "--eos",
    metavar="yes|no|TOKEN",
    help="Token after it.  [default: as bos; after answers yes]",
)
@click.option("--chat-template", help="Jinja file in place of the tokenizer's own chat template.")
@click.option(
    "--max-length", type=click.IntRange(min=1), help="Tokens of an example at the most.  [default: no limit]"
)
@click.option(
    "--oversize",
    type=click.Choice(["error", "split", "truncate", "drop"]),
    default="error",
    show_default=True,
    help="What to do with examples longer than --max-length.",
)
def prepare(
    inputs: tuple[str, ...],
    out: str,
    fields: tuple[str, ...],
    bos: str | None,
    eos: str | None,
    **options: Any,
) -> None:
    """Tokenise files, folders and patterns into a source.

    Each line of a .jsonl or .ndjson file and each row of a .parquet file is a row; any other file is one
    text. Lines and texts may be compressed (.gz, .zst, .bz2, .xz). Folders are walked, hidden files left
    out. Runs on the Ray cluster of RAY_ADDRESS, or on a local Ray of its own.
    """
    from raypack.data import prepare as run

    with _progress() as report:
        source = run(
            inputs,
            out,
            fields=_fields(fields),
            bos=_token(bos),
            eos=_token(eos),
            progress=report,
            **options,
        )
    _show(source, _PREPARED)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--out", required=True, help="Folder or URI to make; nothing may lie there.")
@click.option("--column", default="input_ids", show_default=True, help="Column of the tokens.")
@click.option("--labels-column", help="Column of the labels.  [default: there are none]")
@click.option(
    "--max-length", type=click.IntRange(min=1), help="Tokens of an example at the most.  [default: no limit]"
)
@click.option(
    "--oversize",
    type=click.Choice(["error", "split", "truncate", "drop"]),
    default="error",
    show_default=True,
    help="What to do with rows longer than --max-length.",
)
def index(paths: tuple[str, ...], **options: Any) -> None:
    """Make a source of tokenised files without writing their tokens again.

    PATH is a Parquet or Arrow IPC file, a folder or a pattern of them, or a folder that Hugging Face datasets
    saved. The files stay where they are; the source is refused once one of them is missing or changed. Starts
    no Ray.
    """
    from raypack.source import index_source

    source = index_source(paths, **options)
    _show(source, _INDEXED)
    if source.prefers_blocks:
        click.echo("order        block by default: an example costs the reading of its neighbours")


def _fields(pairs: tuple[str, ...]) -> dict[str, str] | None:
    fields: dict[str, str] = {}
    for pair in pairs:
        role, equals, column = pair.partition("=")
        if not equals or role in fields:
            raise click.UsageError(f"--field must be ROLE=COLUMN, each role once; got {pair!r}")
        fields[role] = column
    return fields or None


def _token(text: str | None) -> bool | str | None:
    return {"yes": True, "no": False}.get(text, text) if text is not None else None


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


def _show(source: ArrowSource, labels: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, label in labels.items():
        table.add_row(label, f"{source.manifest.counts[name]:,}")
    longest = source.manifest.longest
    table.add_row("longest example, tokens", f"{longest.length if longest is not None else 0:,}")
    Console().print(table)
    click.echo(f"source       {source.path}")
    click.echo(f"fingerprint  {source.fingerprint}")
