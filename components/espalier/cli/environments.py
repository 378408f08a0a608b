"""environments serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import ProfileOption, SetOption, environments, examples


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
    from espalier.interchange.openenv_server import EnvironmentServing, serve_environment
    from espalier.orchestration.finished_run import open_finished_run
    from espalier.steps.profiles import named_profile

    chosen = named_profile(profile, set_ or ()) if run is None else open_finished_run(run).profile
    asked = EnvironmentServing(run_dir=run, host=host, port=port)
    serve_environment(asked, chosen, lambda line: typer.echo(line, err=True))
