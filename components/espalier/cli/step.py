"""step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import app, examples

TRY_AGAIN = 75
"""EX_TEMPFAIL of sysexits.h: storage was away, and the same command may succeed later. A Job of
ours makes its pod again for it, unlike for 1 and 2."""


@app.command(
    hidden=True,  # pods run it; people rarely do
    epilog=examples(
        "espalier step train --profile smoke --run s3://espalier/runs/r17",
        "espalier step evaluate --profile smoke --run runs/r18 "
        "--input trained_policy=s3://espalier/runs/r17/trained_policy",
    ),
)
def step(
    *,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Stage of the chain.")],
    run: Annotated[
        str, typer.Option("--run", help="s3://BUCKET/PREFIX of the run, or its folder.")
    ],
    profile: Annotated[
        str, typer.Option("--profile", help="Name, path of a .toml file, or the JSON of a whole.")
    ] = "laptop",
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=URI", help="An input from elsewhere than RUN; repeatable."
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", help="Where the output goes instead of RUN/NAME.")
    ] = None,
    workspace: Annotated[
        Path, typer.Option("--workspace", help="Folder for artifacts of S3 while the step runs.")
    ] = Path("/s3"),
) -> None:
    """Run one stage on artifacts in S3 or in folders, as its pod on a cluster does.

    S3 is where AWS_ENDPOINT_URL_S3 says; credentials come from AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY or a credentials file. MLFLOW_TRACKING_URI and MLFLOW_RUN_ID name the
    tracked run that the stage belongs to. Nothing runs where the output is current. Prints the
    content digest of the output.

    Exit codes: 1 and 2 the stage refuses; 75 storage was away; 128 and more a signal.
    """
    from espalier.orchestration.step_runner import StepFailed, StepOrder, run_step
    from espalier.records import StorageAwayError
    from espalier.steps.profiles import given_profile

    order = StepOrder(
        stage=stage,
        profile=given_profile(profile),
        run_uri=run.rstrip("/"),
        workspace=workspace,
        inputs=dict(_named_uri(text) for text in input_ or ()),
        output=output,
    )
    try:
        manifest = run_step(order, say=lambda line: typer.echo(line, err=True))
    except (StepFailed, StorageAwayError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code if isinstance(error, StepFailed) else TRY_AGAIN) from error
    typer.echo(manifest.content)


def _named_uri(text: str) -> tuple[str, str]:
    name, separator, uri = text.partition("=")
    if not separator or not name or not uri:
        raise typer.BadParameter(f"{text!r}: write it as NAME=URI")
    return name, uri
