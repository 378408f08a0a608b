"""environments list, check, add; `espalier_interop` adds serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import (
    JsonOption,
    SetOption,
    environments,
    examples,
    print_json,
)

_LABELS = {
    "accepted": "own gold accepted",
    "refused": "another task's gold refused",
    "untried": "no wrong answer tried",
    "repeated": "equal when played again",
    "demonstrated": "solved by the teacher",
}


@environments.command(
    name="list",
    epilog=examples("espalier environments list", "espalier environments list --json"),
)
def list_environments(*, as_json: JsonOption = False) -> None:
    """List the installed families of tasks, and the source of each."""
    from espalier.config.environment import installed_families

    found = [
        {"name": one.name, "where": one.where, "source": one.source} for one in installed_families()
    ]
    if as_json:
        print_json(found)
        return
    width = max(len(one["name"]) for one in found)
    for one in found:
        typer.echo(f"{one['name']:{width}}  {one['source']:12}  {one['where']}")


@environments.command(
    name="check",
    epilog=examples(
        "espalier environments check customer_service --count 40",
        "espalier environments check my/own.toml",
        "espalier environments check python_math --tasks gsm8k/test.jsonl --json",
    ),
)
def check(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Profile (name or .toml file), family, or module:Class; tried in this order.",
        ),
    ],
    tasks: Annotated[
        Path | None,
        typer.Option("--tasks", help="File or folder of a public set; default: generated tasks."),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=2, help="Most tasks to play.")] = 100,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a family on held-out tasks, and its teacher on training tasks.

    Every gold answer has to be accepted and another task's gold refused, an episode that is played
    again has to be equal, and the teacher has to solve its tasks.
    """
    from espalier.orchestration.environments import check_environment

    found = check_environment(name, set_ or (), count=count, benchmark=tasks)
    if as_json:
        print_json(found)
    else:
        for key, value in found.items():
            if key != "faults":
                shown = ", ".join(value) or "none" if isinstance(value, list) else value
                typer.echo(f"{_LABELS.get(key, key):27} {shown}")
    for fault in found["faults"]:
        typer.echo(f"fault: {fault}", err=True)
    if found["faults"]:
        raise typer.Exit(1)


@environments.command(
    name="add",
    epilog=examples(
        "espalier environments add procedural",
        "espalier environments add my_package.shop:Shop --out shop.toml",
    ),
)
def add(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Built-in family, or module:Class of a family of your own."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Profile to write for your own family; default NAME.toml."),
    ] = None,
) -> None:
    """Install a built-in family's packages, or write a profile for a family of your own."""
    from espalier.orchestration.environments import add_environment

    typer.echo(add_environment(name, out))
