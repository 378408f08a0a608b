"""The command line: arguments in, results on stdout, everything else on stderr.

app          the commands' frame: errors become one message and exit code 1
options      arguments that several commands share
running      run, compile
registry     promote, rollback, load, versions
looking      evaluate, report, chat
serving      serve
checking     data check-queries
drawing      data draw-questions
kubeflow     submit, schedule create, list, pause, resume, delete
step         step (hidden: what pods run)
doctor       doctor
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from espalier.determinism import prepare_environment

if TYPE_CHECKING:
    import typer


def command_line() -> typer.Typer:
    """Every command, in order."""
    from espalier.cli import (  # noqa: F401 (they add commands)
        checking,
        doctor,
        drawing,
        kubeflow,
        looking,
        registry,
        running,
        serving,
        step,
    )
    from espalier.cli.app import app, in_order

    return in_order(app)


def main() -> None:
    """Entry point of `espalier`."""
    prepare_environment()  # before anything imports torch, tokenizers or mlflow
    command_line()()


__all__ = ["command_line", "main"]
