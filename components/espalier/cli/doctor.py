"""doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import app, examples, print_json
from espalier.cli.options import JsonOption


@app.command(epilog=examples("espalier doctor", "espalier doctor --json"))
def doctor(
    *,
    runs: Annotated[Path, typer.Option("--runs", help="Where runs will be written.")] = Path(
        "runs"
    ),
    as_json: JsonOption = False,
) -> None:
    """Say what is installed, what is missing and what to do.

    Exit code 1 means that `espalier run` would not work; what only a cluster needs is no fault.
    """
    from espalier.orchestration.doctor import examine

    findings = examine(runs)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            remedy = f"  ({finding.remedy})" if finding.remedy else ""
            typer.echo(f"{finding.state:<6}  {finding.name:<{width}}  {finding.found}{remedy}")
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)
