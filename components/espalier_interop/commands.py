"""data export, record, environments serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from espalier.cli.app import (
    JsonOption,
    ProfileOption,
    SetOption,
    app,
    data,
    environments,
    examples,
    print_json,
)


@data.command(
    epilog=examples(
        "espalier data export runs/demo/accepted --format trl --out accepted.jsonl",
        "espalier data export runs/demo/evaluation --format verifiers --out traces.jsonl",
        "espalier data export runs/demo/evaluation/streams/trained --format inspect "
        "--out trained.eval",
        "espalier data export runs/demo/trained_policy/streams --format otlp --out spans.jsonl",
        "espalier data export recorded --format atif --out atif.jsonl --right",
    )
)
def export(
    *,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A run's artifact with trajectories, a folder with its streams of attempts, or "
            "one of `espalier record`.",
        ),
    ],
    form: Annotated[
        Literal["verifiers", "trl", "trl-tokens", "atif", "otlp", "inspect"],
        typer.Option("--format", help="Whose format; trl-tokens is for the policy itself."),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", help="File to write: JSON lines, or NAME.eval for `inspect view`."),
    ],
    right: Annotated[
        bool, typer.Option("--right", help="Leave out attempts that were not right.")
    ] = False,
    without_tools: Annotated[
        bool,
        typer.Option("--without-tools", help="Do not write which tools were offered."),
    ] = False,
) -> None:
    """Write trajectories in the format of verifiers, TRL, Harbor, OpenTelemetry or Inspect.

    The file is there with every row, or not touched. Gold answers are not written.
    """
    from espalier_interop.exports import export as write

    done = write(source, out, form, only_right=right, with_tools=not without_tools)
    typer.echo(
        f"wrote {done.rows} rows of {done.trajectories} trajectories to {out}"
        + (f"; {done.skipped} left out" if done.skipped else "")
    )


@app.command(
    epilog=examples(
        "espalier record runs/demo/trained_policy/policy --out recorded",
        "espalier record runs/demo/warm_policy/policy --out recorded --attempts 200 --json",
        "espalier record Qwen3-0.6B --out recorded --set 'rollout.engine=\"vllm\"' "
        "--set 'rollout.vllm.urls=\"http://127.0.0.1:8001\"'",
        "curl -s -X POST localhost:8000/attempts -H 'content-type: application/json' "
        '-d \'{"task_id": "t1"}\'',
    )
)
def record(  # noqa: PLR0913 (the options of a command)
    *,
    policy: Annotated[
        Path, typer.Argument(metavar="POLICY", help="A policy directory; its answers are recorded.")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Folder for trajectory files; must not exist yet.")
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port; 0 takes any free one.")] = 8000,
    attempts: Annotated[
        int | None, typer.Option("--attempts", min=1, help="Number of attempts to end after.")
    ] = None,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record agents' requests to a policy as trajectories, until interrupted.

    POST /attempts begins an attempt and returns the address for its agent's requests. The agent
    posts the reward there; POST to its `end_url` ends it. [agent] and [episode] of the profile have
    the limits.
    """
    from espalier.determinism import prepare_environment
    from espalier.steps.profiles import named_profile

    prepare_environment()  # before anything imports torch
    from espalier_interop.agents.session import Recording
    from espalier_interop.agents.session import record as record_until_interrupted

    recording = Recording(policy_dir=policy, out=out, host=host, port=port, attempts=attempts)
    chosen = named_profile(profile, set_ or ())
    figures = record_until_interrupted(recording, chosen, lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(figures)
    else:
        typer.echo(f"wrote {figures['recorded']} trajectories to {figures['trajectories']}")


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
    from espalier_interop.openenv_serving.server import EnvironmentServing, serve_environment

    chosen = named_profile(profile, set_ or ()) if run is None else open_finished_run(run).profile
    asked = EnvironmentServing(run_dir=run, host=host, port=port)
    serve_environment(asked, chosen, lambda line: typer.echo(line, err=True))
