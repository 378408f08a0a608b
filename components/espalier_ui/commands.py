"""ui."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import app, examples


@app.command(
    name="ui",
    epilog=examples(
        "espalier ui runs/demo",
        "espalier ui runs --port 0",
        "espalier ui runs/a runs/b --host 0.0.0.0",
        "espalier ui runs/demo --export demo.html",
        "espalier ui s3://espalier/runs/r17",
    ),
)
def ui(
    *,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Folders that `espalier run --out` fills, folders of them, or s3://BUCKET/PREFIX "
            "of a run; default: runs.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; beyond this machine a token is asked."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes any free one.")
    ] = 8123,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="File for labels; default: one of the user's.")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", help="Folder for indexes; default: one of the user's cache."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", help="Write the first run into this HTML file, and serve nothing."
        ),
    ] = None,
) -> None:
    """Look into runs in a browser, also into one that trains or has crashed.

    Nothing is written into a run. ESPALIER_UI_TOKEN sets the token, which is drawn otherwise.
    """
    from espalier_ui.server import Viewing, default_cache, default_labels, export_run, view

    viewing = Viewing(
        roots=runs or ["runs"],
        host=host,
        port=port,
        labels=labels or default_labels(),
        cache=cache or default_cache(),
    )
    if export is not None:
        export_run(viewing, export)
        typer.echo(str(export))
        return
    try:
        view(viewing, lambda line: typer.echo(line, err=True))
    except KeyboardInterrupt:
        raise typer.Exit from None
