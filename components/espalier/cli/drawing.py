"""draw-questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from espalier.cli.app import app, examples
from espalier.cli.options import ProfileOption


@app.command(
    name="draw-questions",
    epilog=examples(
        "espalier draw-questions runs/demo/knowledge --count 200000 --out questions",
        "espalier draw-questions runs/demo/knowledge --split all --processes 4 --out questions",
    ),
)
def draw_questions(
    *,
    knowledge: Annotated[
        Path, typer.Argument(metavar="KNOWLEDGE", help="The knowledge artifact of a run.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the questions.")],
    count: Annotated[int, typer.Option("--count", min=1, help="Questions.")] = 100_000,
    split: Annotated[
        Literal["train", "dev", "heldout", "all"],
        typer.Option("--split", help="Whose entities; no file holds questions of two splits."),
    ] = "train",
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=8, help="The rows do not depend on it.")
    ] = 1,
    profile: ProfileOption = "laptop",
) -> None:
    """Draw questions by the million, in constant memory; the same command resumes a killed one."""
    from espalier.steps.console import ConsoleTracker
    from espalier.steps.profiles import named_profile
    from espalier.synthesis.bulk import Asked, draw_questions
    from espalier.synthesis.task_making import SPLITS

    splits = SPLITS if split == "all" else (split,)
    asked = Asked(knowledge=knowledge, splits=splits, count=count)
    settings = named_profile(profile)
    manifest = draw_questions(
        settings, asked, out, ConsoleTracker("draw questions"), processes=processes
    )
    typer.echo(f"wrote {sum(manifest.rows.values())} questions to {out}  {manifest.content}")
