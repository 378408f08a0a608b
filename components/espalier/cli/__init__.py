"""The command line: arguments in, results on stdout, everything else on stderr.

app         the root command (listing, errors, exit codes), and shared arguments
plan        plan: the resources of a run, before it runs
runs        run, evaluate, reward-model, report, chat; step (hidden: pods run it); doctor
models      promote, rollback, load, versions, serve, record, api-key: registered models
named_models    models list, add, push: base models
kubeflow    compile, submit, schedule create, list, pause, resume, delete
kubeflow_runs   runs list, show, stop, retry; following a run
data        data fetch, collect
environments    environments list, check, add

A package adds commands of its own by an entry point of the group `espalier.commands`: a module that
adds them to `app`, `data` or `environments` of `espalier.cli.app` when it is imported.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from espalier.determinism import prepare_environment

if TYPE_CHECKING:
    import typer

_ENTRY_POINTS = "espalier.commands"


def command_line() -> typer.Typer:
    """Return the application with every command, those of installed packages included."""
    from espalier.cli import (  # noqa: F401 (they add commands)
        data,
        environments,
        kubeflow,
        models,
        named_models,
        plan,
        runs,
    )
    from espalier.cli.app import app

    for point in sorted(metadata.entry_points(group=_ENTRY_POINTS), key=lambda one: one.name):
        point.load()
    return app


def main() -> None:
    """Entry point of `espalier`."""
    prepare_environment()  # before anything imports torch, tokenizers or mlflow
    command_line()()


__all__ = ["command_line", "main"]
