"""data export, environments serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from espalier.cli.app import ProfileOption, SetOption, data, environments, examples


@data.command(
    epilog=examples(
        "espalier data export runs/demo/accepted --format trl --out accepted.jsonl",
        "espalier data export runs/demo/evaluation --format verifiers --out traces.jsonl",
        "espalier data export recorded --format atif --out atif.jsonl --right",
    )
)
def export(
    *,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A run's artifact with trajectories, or a folder of `espalier record`.",
        ),
    ],
    form: Annotated[
        Literal["verifiers", "trl", "trl-tokens", "atif"],
        typer.Option("--format", help="Whose format; trl-tokens is for the policy itself."),
    ],
    out: Annotated[Path, typer.Option("--out", help="File of JSON lines to write.")],
    right: Annotated[
        bool, typer.Option("--right", help="Leave out attempts that were not right.")
    ] = False,
    without_tools: Annotated[
        bool,
        typer.Option("--without-tools", help="Do not write which tools were offered."),
    ] = False,
) -> None:
    """Write trajectories in the format of verifiers, TRL or Harbor (ATIF).

    The file is there with every row, or not touched. Gold answers are not written.
    """
    from espalier_interop.exports import export as write

    done = write(source, out, form, only_right=right, with_tools=not without_tools)
    typer.echo(
        f"wrote {done.rows} rows of {done.trajectories} trajectories to {out}"
        + (f"; {done.skipped} left out" if done.skipped else "")
    )


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
    port: Annotated[int, typer.Option("--port", help="0 takes any that is free.")] = 8000,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
) -> None:
    """Serve a family's tasks by OpenEnv's protocol, until it is interrupted.

    Each client plays in a session of its own: a WebSocket at /ws. Gold answers stay here.
    """
    from espalier.orchestration.finished_run import open_finished_run
    from espalier.steps.profiles import named_profile
    from espalier_interop.openenv_server import EnvironmentServing, serve_environment

    chosen = named_profile(profile, set_ or ()) if run is None else open_finished_run(run).profile
    asked = EnvironmentServing(run_dir=run, host=host, port=port)
    serve_environment(asked, chosen, lambda line: typer.echo(line, err=True))
