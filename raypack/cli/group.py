"""Groups of commands that end with one clear line where the input is at fault."""

from __future__ import annotations

from typing import Any

import click

from raypack.errors import RaypackError


class Failure(click.ClickException):
    """Bad input: one line and exit code 2, as for bad usage."""

    exit_code = 2


class Commands(click.Group):
    """A group whose commands end with one clear line, not a traceback, where the input is at fault."""

    failure: type[click.ClickException] = Failure

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except (RaypackError, OSError) as error:
            raise self.failure(" ".join(str(error).split())) from error


class StateCommands(Commands):
    """Commands that end with 1 where a checkpoint is at fault."""

    failure = click.ClickException
