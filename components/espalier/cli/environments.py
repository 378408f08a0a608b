"""environments list, check, add, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import (
    JsonOption,
    ProfileOption,
    SetOption,
    environments,
    examples,
    print_json,
)


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
    count: Annotated[int, typer.Option("--count", min=2, help="Most tasks to check.")] = 100,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a family accepts its gold answers, refuses other ones, and repeats exactly.

    Its teacher's demonstrations are played too.
    """
    from espalier.orchestration.environments import check_environment

    found = check_environment(name, set_ or (), count=count, benchmark=tasks)
    if as_json:
        print_json(found)
    else:
        for key, value in found.items():
            if key != "faults":
                shown = ", ".join(value) or "none" if isinstance(value, list) else value
                typer.echo(f"{key:13} {shown}")
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


@environments.command(
    epilog=examples(
        "espalier environments serve --profile arithmetic --port 8000",
        "espalier environments serve --run runs/demo",
        "espalier environments serve --profile customer_service "
        "--set serving.environments.max_sessions=1024",
    )
)
def serve(
    *,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="Serve the tasks of this run, over its knowledge."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port; 0 takes any free one.")] = 8000,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
) -> None:
    """Serve a family's tasks over OpenEnv's protocol, until interrupted.

    Each client plays in its own session: a WebSocket at /ws. Gold answers are never sent.
    """
    from espalier.interchange.openenv_server import EnvironmentServing, serve_environment
    from espalier.orchestration.finished_run import open_finished_run
    from espalier.steps.profiles import named_profile

    chosen = named_profile(profile, set_ or ()) if run is None else open_finished_run(run).profile
    serving = EnvironmentServing(run_dir=run, host=host, port=port)
    serve_environment(serving, chosen, lambda line: typer.echo(line, err=True))
