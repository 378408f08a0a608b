"""data check-queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import data, examples, print_json
from espalier.cli.options import JsonOption


@data.command(
    name="check-queries",
    epilog=examples(
        "espalier data check-queries webshaper.jsonl",
        "espalier data check-queries webshaper.jsonl --json | jq .rows_by_kind",
    ),
)
def check_queries(
    *,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help='JSON lines, each with a "formalization": [[X, relation, S], ...].'
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Count the faults of formalized questions (WebShaper's entries), each kind apart."""
    from espalier.synthesis.webshaper import notation_files as files

    checked = files.check_file(file)
    if as_json:
        print_json(files.figures(checked))
    else:
        typer.echo(files.table(checked))
