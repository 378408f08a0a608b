"""run, compile."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import app, examples, print_json, resumable
from espalier.cli.options import JsonOption, ProfileOption, SetOption


class Runner(enum.StrEnum):
    """Where the stages run."""

    IN_PROCESS = "in-process"
    KFP_LOCAL = "kfp-local"


_HOW_TO_GO_ON = {
    Runner.IN_PROCESS: "The same command goes on from the last checkpoint",
    Runner.KFP_LOCAL: "The same command starts the pipeline again",
}


@app.command(
    epilog=examples(
        "espalier run --profile smoke --out runs/try",
        "espalier run --set training.steps=50 --set seed=1 --out runs/s1",
        "espalier run --profile my/own.toml --runner kfp-local --json",
    )
)
def run(
    *,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; default runs/<profile>.")
    ] = None,
    runner: Annotated[Runner, typer.Option("--runner", help="Where stages run.")] = (
        Runner.IN_PROCESS
    ),
    as_json: JsonOption = False,
) -> None:
    """Run the whole chain, from knowledge source to registered model.

    The same command resumes a run that was killed, and keeps every artifact that is still current.
    Prints the table of results; --json prints RUN/summary.json.
    """
    from espalier.steps.profiles import named_profile

    chosen = named_profile(profile, set_ or ())
    run_dir = out or Path("runs") / chosen.name
    with resumable(_HOW_TO_GO_ON[runner]):
        from espalier.orchestration import runs
        from espalier.orchestration.results import results_text

        run_chain = runs.run_kfp_local if runner is Runner.KFP_LOCAL else runs.run_in_process
        summary = run_chain(chosen, run_dir, lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(summary)
    else:
        typer.echo(results_text(run_dir, summary))


@app.command(
    name="compile",
    epilog=examples(
        "espalier compile --out pipeline.yaml",
        "espalier compile --image registry.example/espalier:1 --profile smoke --out smoke.yaml",
    ),
)
def compile_(
    *,
    out: Annotated[Path, typer.Option("--out", help="The .yaml file to write.")] = Path(
        "pipeline.yaml"
    ),
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    image: Annotated[
        str | None, typer.Option("--image", help="Container image of every step.")
    ] = None,
) -> None:
    """Write the pipeline as Kubeflow takes it.

    --profile and --set become what the run form starts with. The section [kubernetes] of the
    profile is compiled in: images, resources, GPUs, nodes, volumes, secrets and labels of the pods.
    """
    from espalier.orchestration.pipelines import compile_pipeline, form_defaults
    from espalier.steps.profiles import named_profile

    settings = named_profile(profile, set_ or ()).kubernetes
    compile_pipeline(out, form_defaults(profile, set_ or ()), settings, image)
    typer.echo(f"wrote {out}")
