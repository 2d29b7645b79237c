"""The boundary between errors and people: one line on standard error and an exit code.

Errors that somebody can act on end here.  Any other is a bug and keeps its traceback.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from skerry.cli.output import print_json, printable

# Of click, or of the copy of it that newer versions of typer carry.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class SkerryGroup(TyperGroup):
    """All subcommands; that a command line is wrong is told as JSON, too, if it asks for that."""

    def invoke(self, ctx: Any) -> Any:
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if as_json:
                from skerry.cli.failures import usage

                print_json({"error": usage(error).to_json()})
            raise


class SkerryCommand(TyperCommand):
    """A subcommand that turns foreseen errors into exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # whoever reads our output has seen enough: typer ends quietly
        except Exception as error:  # the command's boundary: reported, or raised again as it is
            from skerry.cli.failures import explain

            failure = explain(error)
            if failure is None:
                raise
            if ctx.params.get("as_json"):
                print_json({"error": failure.to_json()})
            typer.echo(printable(f"skerry {self.name}: {failure}"), err=True)
            raise typer.Exit(failure.exit_code) from error
