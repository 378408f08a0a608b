"""The frame of the commands: order of the listing, errors, examples."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from contextlib import AbstractContextManager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from espalier import __version__
from espalier.extras import missing_extra
from espalier.records import EspalierError

_MOVED = {
    "check-queries": "espalier data check-queries",
    "draw-questions": "espalier data draw-questions",
}
"""Former names of commands, which scripts may still have."""


class _Commands(TyperGroup):
    def main(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (as typer declares it)
        """Run a command; what the user has to mend is one message, not a traceback."""
        try:
            return super().main(*args, **kwargs)
        except EspalierError as error:
            typer.echo(f"error: {error}", err=True)
            sys.exit(1)
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            if missing is None:
                raise  # no extra brings it: a fault of ours
            typer.echo(f"error: {missing}", err=True)
            sys.exit(1)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 (as typer's)
        """Find the command; one that has moved is refused with its new name."""
        if args and args[0] in _MOVED:
            ctx.fail(f"`espalier {args[0]}` is `{_MOVED[args[0]]}` now, with the same arguments.")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="espalier",
    cls=_Commands,
    help="From a knowledge source and a base policy to an evaluated, registered agent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


data = typer.Typer(
    name="data",
    help="Questions on their own: check formalized ones, draw millions.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data)

_ORDER = (
    *("run", "evaluate", "report", "chat", "promote", "rollback", "load", "versions", "serve"),
    *("compile", "submit", "step", "doctor"),
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


def resumable(how_to_go_on: str) -> AbstractContextManager[None]:
    """Within the block, Ctrl-C and SIGTERM end the command in order, within five seconds.

    Args:
        how_to_go_on: said last, before the command as it was typed.
    """
    from espalier.steps.stopping import stopping_on_signals

    command = shlex.join(["espalier", *sys.argv[1:]])
    return stopping_on_signals(
        lambda line: typer.echo(line, err=True), f"{how_to_go_on}: {command}"
    )


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
