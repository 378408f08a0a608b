"""data check-queries, data draw-questions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from espalier.cli.app import JsonOption, ProfileOption, data, examples, print_json, resumable

if TYPE_CHECKING:
    from espalier_search.synthesis.bulk_drawing import Workers


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
    from espalier_search.synthesis.webshaper import notation_files as files

    checked = files.check_file(file)
    if as_json:
        print_json(files.figures(checked))
    else:
        typer.echo(files.table(checked))


@data.command(
    name="draw-questions",
    epilog=examples(
        "espalier data draw-questions runs/demo/knowledge --count 200000 --out questions",
        "espalier data draw-questions runs/demo/knowledge --split all --out out",
        "espalier data draw-questions /nfs/knowledge --parts 64 --ray --out /nfs/questions",
    ),
)
def draw_questions(  # noqa: PLR0913 (its arguments are its options)
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
    parts: Annotated[
        int,
        typer.Option(
            "--parts",
            min=1,
            max=10_000,
            help="Files of a split, which --ray draws side by side; the rows depend on it.",
        ),
    ] = 8,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Draw on every CPU of the Ray cluster of RAY_ADDRESS, or of the one that runs "
            "here; its nodes share the folders. The rows do not depend on it.",
        ),
    ] = False,
    profile: ProfileOption = "laptop",
) -> None:
    """Draw questions by the million, in constant memory; the same command resumes a killed one."""
    from espalier.records import SPLITS
    from espalier.steps.console import ConsoleTracker
    from espalier.steps.profiles import named_profile
    from espalier_search.synthesis.bulk_drawing import BulkOrder, draw_questions, this_process

    splits = SPLITS if split == "all" else (split,)
    order = BulkOrder(knowledge=knowledge, splits=splits, count=count, parts=parts)
    settings = named_profile(profile)
    workers = _on_ray() if ray else this_process
    with resumable("The same command goes on after the last row"):
        manifest = draw_questions(
            settings, order, out, ConsoleTracker("draw questions"), workers=workers
        )
    typer.echo(f"wrote {sum(manifest.rows.values())} questions to {out}  {manifest.content}")


def _on_ray() -> Workers:
    from espalier.extras import install_command
    from espalier.records import EngineError

    try:
        from espalier_search.synthesis.bulk_ray_workers import ray_workers
    except ModuleNotFoundError as error:
        raise EngineError(
            f"--ray needs the package {error.name}: {install_command('ray')}, here and on the nodes"
        ) from error
    return ray_workers
