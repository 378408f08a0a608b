"""promote, rollback, load, versions, serve, api-key: registered models.

Base models, which a run may start from, are in `named_models`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from espalier.cli.app import (
    JsonOption,
    ModelArgument,
    RunOption,
    RunsOption,
    SetOption,
    app,
    examples,
    print_json,
)

VersionOption = Annotated[
    str | None,
    typer.Option("--version", metavar="N", help="Version number; default: @challenger."),
]


@app.command(
    epilog=examples(
        "espalier promote",
        "espalier promote espalier-search-agent --version 3 --json",
        "espalier promote --force 'the suite of May was wrong, see the incident of 3 June'",
    )
)
def promote(
    *,
    model: ModelArgument = None,
    version: VersionOption = None,
    force: Annotated[
        str | None,
        typer.Option("--force", metavar="REASON", help="Skip the gate; REASON is recorded."),
    ] = None,
    run: RunOption = None,
    runs: RunsOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Move @champion to a version that passes the gate.

    It has to beat the champion on the same held-out questions, or its own warm start if there is no
    champion yet.
    """
    from espalier.orchestration.promotion import open_registry, promotion_record

    registry = open_registry(run, model, runs)
    if force is None:
        promotion = registry.promote(version)
    else:
        promotion = registry.promote_forced(version, force)
    if as_json:
        print_json(promotion_record(promotion))
        return
    previous = f", was version {promotion.previous}" if promotion.previous else ""
    typer.echo(f"{promotion.model}@champion is version {promotion.version}{previous}")
    typer.echo(f"gate {promotion.gate}: {promotion.comparison or force}")


@app.command(epilog=examples("espalier rollback", "espalier rollback espalier-search-agent"))
def rollback(
    *,
    model: ModelArgument = None,
    run: RunOption = None,
    runs: RunsOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Move @champion back to the previous champion."""
    from espalier.orchestration.promotion import open_registry, promotion_record

    promotion = open_registry(run, model, runs).rollback()
    if as_json:
        print_json(promotion_record(promotion))
        return
    typer.echo(
        f"{promotion.model}@champion is version {promotion.version} again, "
        f"was version {promotion.previous}"
    )


@app.command(epilog=examples("espalier load espalier-search-agent@champion --out policy"))
def load(
    *,
    reference: Annotated[
        str, typer.Argument(metavar="MODEL@ALIAS", help="MODEL@champion, or MODEL/3.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; must be empty or new.")],
    runs: RunsOption = Path("runs"),
) -> None:
    """Write a registered policy to a folder, bit for bit."""
    from espalier.orchestration.promotion import open_registry

    typer.echo(str(open_registry(None, None, runs).load(reference, out)))


@app.command(epilog=examples("espalier versions", "espalier versions --json"))
def versions(
    *,
    model: ModelArgument = None,
    runs: RunsOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """List the versions of a model, newest first."""
    from espalier.orchestration.promotion import open_registry, version_record

    records = [version_record(found) for found in open_registry(None, model, runs).versions()]
    if as_json:
        print_json(records)
        return
    typer.echo(versions_table(records))


def versions_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Table of versions for a terminal, from their `version_record`."""
    rows = [("version", "aliases", "gate", "registered", "policy", "reason")]
    rows += [
        (
            str(record["version"]),
            ", ".join(record["aliases"]),
            record["gate"],
            record["created"],
            record["policy_digest"][:12],
            record["gate_reason"],
        )
        for record in records
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


@app.command(
    epilog=examples(
        "espalier serve runs/demo/trained_policy/policy",
        "espalier serve espalier-search-agent@champion --port 8080",
        "espalier serve models:/espalier-search-agent/3 --set serving.rows=16",
        "espalier serve espalier-search-agent@champion --set serving.api_keys_file=api-keys",
        "espalier serve --run runs/demo",
        "espalier serve espalier-search-agent@champion --run runs/demo",
    )
)
def serve(  # noqa: PLR0913 (the options of a command)
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A policy directory, MODEL@champion, or models:/MODEL/3; a version is served only "
            "if it passed the gate or was forced with a reason. Default with --run: the run's "
            "trained policy.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Serve the agent: answer a question by a whole episode, with the tools, the "
            "knowledge and the profile of this run.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port; 0 takes any free one.")] = 8000,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="Name in pipelines/profiles, or path of a .toml file; default: laptop, and with "
            "--run the run's own.",
        ),
    ] = None,
    set_: SetOption = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Serve a policy behind an OpenAI-compatible endpoint, until interrupted.

    The policy's tool calls are the caller's to run. With --run the agent runs them itself, and
    the answer is that of the whole episode.
    """
    from espalier.serving.server import Serving
    from espalier.serving.server import serve as serve_until_interrupted

    if model is None and run is None:
        raise typer.BadParameter("name a MODEL, or a run with --run RUN")
    if profile is not None and run is not None:
        raise typer.BadParameter(
            "--run has a profile of its own: change it with --set, without --profile"
        )
    serving = Serving(model=model, run=run, host=host, port=port, runs_dir=runs)
    if run is None:
        from espalier.steps.profiles import named_profile

        chosen = named_profile(profile or "laptop", set_ or ())
    else:
        from espalier.orchestration.finished_run import open_finished_run

        chosen = open_finished_run(run).changed(set_ or ())
    serve_until_interrupted(serving, chosen, lambda line: typer.echo(line, err=True))


@app.command(
    name="api-key",
    epilog=examples(
        "espalier api-key alice --file api-keys",
        'CONTROLLER_KEY="$(espalier api-key controller --file api-keys)"',
        "kubectl -n espalier-pipeline create secret generic espalier-serving-keys "
        '--from-file=api-keys --from-literal=controller="$CONTROLLER_KEY"',
    ),
)
def api_key(
    *,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Owner of the key; each name has one key.")
    ],
    file: Annotated[
        Path, typer.Option("--file", help="File that its digest is added to; made if missing.")
    ],
) -> None:
    """Make an API key for the endpoint; it is printed once, and stored as a digest."""
    from espalier.wire.keys import new_key

    typer.echo(new_key(name, file))
    typer.echo(f"{file} has its digest; the key itself is stored nowhere", err=True)
