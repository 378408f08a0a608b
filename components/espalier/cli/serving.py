"""serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import app, examples
from espalier.cli.options import ProfileOption, RunsOption, SetOption


@app.command(
    epilog=examples(
        "espalier serve runs/demo/trained_policy/policy",
        "espalier serve espalier-search-agent@champion --port 8080",
        "espalier serve models:/espalier-search-agent/3 --set serving.rows=16",
    )
)
def serve(
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A policy directory, MODEL@champion, or models:/MODEL/3; a version is served "
            "only with a recorded gate pass or a forced reason.",
        ),
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 takes any that is free.")] = 8000,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Serve a policy behind an OpenAI-compatible endpoint, until it is interrupted."""
    from espalier.serving.server import Serving
    from espalier.serving.server import serve as serve_until_told
    from espalier.steps.profiles import named_profile

    serving = Serving(model=model, host=host, port=port, runs_dir=runs)
    chosen = named_profile(profile, set_ or ())
    serve_until_told(serving, chosen, lambda line: typer.echo(line, err=True))
