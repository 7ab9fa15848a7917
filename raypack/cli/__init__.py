"""The command line. Commands import what they need when they run, so that ``--help`` is quick."""

from __future__ import annotations

import click

from raypack.cli.group import Commands
from raypack.cli.runs import doctor, state, verify
from raypack.cli.sources import index, prepare
from raypack.version import __version__


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="raypack")
def main() -> None:
    """Elastic, token-budgeted, packed data loading for LLM training on Ray."""


for command in (prepare, index, verify, state, doctor):
    main.add_command(command)
