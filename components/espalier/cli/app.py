"""The frame of the commands: order of the listing, errors, examples."""

from __future__ import annotations

import json
import logging
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from espalier import __version__
from espalier.records import EspalierError


class _Commands(TyperGroup):
    def main(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (as typer declares it)
        """Run a command; what the user has to mend is one message, not a traceback."""
        try:
            return super().main(*args, **kwargs)
        except EspalierError as error:
            typer.echo(f"error: {error}", err=True)
            sys.exit(1)


app = typer.Typer(
    name="espalier",
    cls=_Commands,
    help="From a knowledge source and a base policy to an evaluated, registered agent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


_ORDER = (
    *("run", "evaluate", "report", "chat", "promote", "rollback", "load", "versions", "serve"),
    *("check-queries", "draw-questions", "compile", "submit", "step", "doctor"),
)


def in_order(commands: typer.Typer) -> typer.Typer:
    """The same commands, listed in the order in which a run's life needs them."""
    commands.registered_commands.sort(
        key=lambda info: _ORDER.index(info.name or getattr(info.callback, "__name__", ""))
    )
    return commands


def examples(*lines: str) -> str:
    """An epilog for `--help` that keeps its lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def print_json(value: object) -> None:
    """Print a result for scripts."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _show_version(value: bool) -> None:  # noqa: FBT001 (typer calls it by position)
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _frame(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
