"""The root command: the listing of commands, errors, examples, and shared arguments."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from espalier import __version__
from espalier.extras import missing_extra
from espalier.records import EspalierError

_HELP_WIDTH = 64


PANELS = {
    "Runs": ("plan", "run", "evaluate", "reward-model", "report", "ui", "chat"),
    "Models": ("models", "promote", "rollback", "load", "versions", "serve", "record", "api-key"),
    "Kubeflow": ("compile", "submit", "runs", "schedule"),
    "Data": ("data", "environments"),
    "This machine": ("doctor",),
}
"""Section of `espalier --help` -> its commands, in the order of a run's life."""


class _Commands(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 (as typer's)
        """List the commands by section."""
        width = max(len(name) for names in PANELS.values() for name in names)
        for title, names in PANELS.items():
            # padded to one width, so that the descriptions of all sections align
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(_HELP_WIDTH))
                for name in names
                if name in self.commands  # some are of packages that may be missing
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def main(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (as typer declares it)
        """Run a command; report an error that the user can fix as one line, not a traceback."""
        try:
            return super().main(*args, **kwargs)
        except EspalierError as error:
            typer.echo(f"error: {error}", err=True)
            sys.exit(1)
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            if missing is None:
                raise  # not in any extra, so a bug of espalier
            typer.echo(f"error: {missing}", err=True)
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


data = typer.Typer(
    name="data",
    help="Formalized questions, and artifacts in S3 as folders.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data)

environments = typer.Typer(
    name="environments",
    help="Families of tasks: list, check with gold answers, serve.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(environments)


named_models = typer.Typer(
    name="models",
    help="Base models that policy.model may name: list, add, push to S3.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(named_models)


def examples(*lines: str) -> str:
    """Epilog for `--help` with one example per line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def resumable(how_to_go_on: str) -> AbstractContextManager[None]:
    """Within the block, Ctrl-C and SIGTERM end the command cleanly, within five seconds.

    Args:
        how_to_go_on: last message, which is followed by the command as it was typed.
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
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )


ProfileOption = Annotated[
    str, typer.Option("--profile", help="Name in pipelines/profiles, or path of a .toml file.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Change one value of the profile; repeatable."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder that `espalier run --out` filled.")
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="RUN",
        help="Folder of the run that made the version; default: looked up in MLflow.",
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]", help="Registered model; default: the one of the run or profile."
    ),
]
RunsOption = Annotated[
    Path,
    typer.Option(
        "--runs", help="Folder of runs and their mlflow.db; not used with MLFLOW_TRACKING_URI."
    ),
]
