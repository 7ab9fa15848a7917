"""Commands that look at runs and models."""

from __future__ import annotations

import json
from typing import Any

import click

from raypack.cli.group import Failure, StateCommands


@click.command()
@click.argument("run_dir")
@click.option("--source", help="Where the source lies now; by default where the run found it.")
@click.option("--name", help="Name of the loader, for runs with several.")
@click.option("--so-far", is_flag=True, help="The run need not have reached its goal.")
@click.option("--allow-skipped", is_flag=True, help="Steps that step.skip() left may stay untrained.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(
    run_dir: str, source: str | None, name: str | None, so_far: bool, allow_skipped: bool, as_json: bool
) -> None:
    """Prove that a run trained every example of its goal exactly once.

    Reads one checkpoint and the source, and starts no Ray. RUN_DIR is <storage_path>/<run name>, or one
    checkpoint in it. Exit code 0: complete, or as much as the options ask for; 1: a fault, or what cannot
    be read; 2: no run is there; 3: consistent so far, but the goal is not reached, or steps were skipped.
    """
    from raypack.audit import verify as run

    audit = run(run_dir, source=source, name=name)
    if as_json:
        _print_json(audit.to_dict())
    if not audit.found:
        raise Failure(" ".join(audit.findings))
    if not as_json:
        from rich.console import Console

        from raypack.audit.tables import audit_table

        Console().print(audit_table(audit))
    if code := audit.exit_code(unfinished=so_far, skipped=allow_skipped):
        raise SystemExit(code)


@click.command()
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

    from raypack.audit.doctor.diagnosis import diagnose
    from raypack.audit.tables import doctor_table

    diagnosis = diagnose(model, device)
    Console().print(doctor_table(diagnosis))
    if not diagnosis.ok:
        raise SystemExit(1)


@click.group(cls=StateCommands)
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
    from raypack.audit.state.show import show as run

    views = run(run_or_checkpoint, name=name, source=source)
    if as_json:
        _print_json([view.to_dict() for view in views])
        return
    from rich.console import Console

    from raypack.audit.state.tables import loaders_table, state_table

    Console().print(state_table(views[0]) if len(views) == 1 else loaders_table(views))


@state.command()
@click.argument("run_or_checkpoint")
@click.option("--world-size", required=True, type=click.IntRange(min=1), help="Data ranks to deal it to.")
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
    """Tell what each data rank of another number would get, with the proof that it is all that is left.

    A run needs no such step: it goes on at any number of workers by itself.
    """
    from raypack.audit.state.reshard import reshard as run

    result = run(run_or_checkpoint, world_size, name=name, source=source, out=out)
    if as_json:
        _print_json(result.to_dict())
    else:
        from rich.console import Console

        from raypack.audit.state.tables import reshard_table

        Console().print(reshard_table(result))
    if not result.ok:
        raise SystemExit(1)


def _print_json(values: Any) -> None:
    click.echo(json.dumps(values, indent=1))
