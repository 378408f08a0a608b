"""data check-queries, data draw-questions, data fetch, data export, data collect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from espalier.cli.app import JsonOption, ProfileOption, data, examples, print_json, resumable

if TYPE_CHECKING:
    from espalier.synthesis.bulk_drawing import Workers


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
    """Count the faults of formalized questions (WebShaper's entries) by kind."""
    from espalier.synthesis.webshaper import notation_files as files

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
    count: Annotated[int, typer.Option("--count", min=1, help="Number of questions.")] = 100_000,
    split: Annotated[
        Literal["train", "dev", "heldout", "all"],
        typer.Option("--split", help="Split of the entities; each has files of its own."),
    ] = "train",
    parts: Annotated[
        int,
        typer.Option(
            "--parts",
            min=1,
            max=10_000,
            help="Files per split, which --ray draws in parallel; the rows depend on it.",
        ),
    ] = 8,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Draw on every CPU of the Ray cluster at RAY_ADDRESS, or else on this machine; "
            "its nodes have to share the folders. The rows do not depend on it.",
        ),
    ] = False,
    profile: ProfileOption = "laptop",
) -> None:
    """Draw questions by the million, in constant memory; the same command resumes a killed one."""
    from espalier.records import SPLITS
    from espalier.steps.console import ConsoleTracker
    from espalier.steps.profiles import named_profile
    from espalier.synthesis.bulk_drawing import BulkOrder, draw_questions, this_process

    splits = SPLITS if split == "all" else (split,)
    order = BulkOrder(knowledge=knowledge, splits=splits, count=count, parts=parts)
    settings = named_profile(profile)
    workers = _on_ray() if ray else this_process
    with resumable("The same command resumes after the last row"):
        manifest = draw_questions(
            settings, order, out, ConsoleTracker("draw questions"), workers=workers
        )
    typer.echo(f"wrote {sum(manifest.rows.values())} questions to {out}  {manifest.content}")


@data.command(
    epilog=examples(
        "espalier data fetch s3://espalier/runs/r17/trained_policy --out trained_policy",
    )
)
def fetch(
    *,
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="An artifact: s3://BUCKET/RUN/NAME, or a folder.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for its files.")],
) -> None:
    """Copy an artifact to a folder, under the names of its files, and check every byte.

    In S3 files are stored by their SHA-256. The same command resumes. Prints the content digest.
    """
    import os

    from espalier.storage import open_location

    typer.echo(open_location(uri, os.environ).fetch(out).content)


@data.command(
    epilog=examples(
        "espalier data export runs/demo/accepted --format trl --out accepted.jsonl",
        "espalier data export runs/demo/evaluation --format verifiers --out traces.jsonl",
        "espalier data export recorded --format atif --out atif.jsonl --right",
    )
)
def export(
    *,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A run's artifact with trajectories, or a folder of `espalier record`.",
        ),
    ],
    form: Annotated[
        Literal["verifiers", "trl", "trl-tokens", "atif"],
        typer.Option("--format", help="Format; trl-tokens has token ids of this policy."),
    ],
    out: Annotated[Path, typer.Option("--out", help="File of JSON lines to write.")],
    right: Annotated[bool, typer.Option("--right", help="Leave out wrong attempts.")] = False,
    without_tools: Annotated[
        bool,
        typer.Option("--without-tools", help="Leave out the tools that were offered."),
    ] = False,
) -> None:
    """Write trajectories in the format of verifiers, TRL or Harbor (ATIF).

    The file is written with all rows, or not touched. Gold answers are not written.
    """
    from espalier.interchange.exports import export as write

    done = write(source, out, form, only_right=right, with_tools=not without_tools)
    typer.echo(
        f"wrote {done.rows} rows of {done.trajectories} trajectories to {out}"
        + (f"; {done.skipped} left out" if done.skipped else "")
    )


@data.command(
    epilog=examples(
        "espalier data collect s3://espalier/runs --dry-run",
        "espalier data collect s3://espalier --older-than 30",
        "espalier data collect s3://espalier/runs/r17 --unpublished",
    )
)
def collect(
    *,
    uri: Annotated[
        str,
        typer.Argument(metavar="URI", help="s3://BUCKET or s3://BUCKET/PREFIX to search."),
    ],
    older_than: Annotated[
        int,
        typer.Option("--older-than", metavar="DAYS", min=1, help="Least age of deleted objects."),
    ] = 7,
    kept_older_than: Annotated[
        int,
        typer.Option(
            "--kept-older-than",
            metavar="DAYS",
            min=1,
            help="Days without use after which outputs and checkpoints kept for later runs may go.",
        ),
    ] = 30,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")
    ] = False,
    unpublished: Annotated[
        bool,
        typer.Option("--unpublished", help="Also delete contents without a manifest."),
    ] = False,
) -> None:
    """Delete objects that no artifact in S3 names any more, and abandoned uploads.

    These are left behind when artifacts are replaced. Objects that a manifest names, or that are
    younger, are not touched, except those kept for later runs: they may go when no run has used
    them for --kept-older-than days. Contents without a manifest are only counted, unless
    --unpublished is given: they belong to a killed publication, to an artifact whose manifest was
    lost, or to another program.
    """
    import os
    from datetime import timedelta

    from espalier.storage.garbage import described, open_collector

    collector = open_collector(
        uri,
        os.environ,
        kept_age=timedelta(days=kept_older_than),
        unpublished=unpublished,
    )
    age = timedelta(days=older_than)
    if dry_run:
        for garbage in collector.find(age):
            found = garbage.fault or described(garbage.objects, garbage.uploads)
            typer.echo(f"{garbage.uri}: {found}")
    else:
        num_bytes = collector.collect(age, typer.echo)
        typer.echo(f"freed {num_bytes / 1e6:.1f} MB")


def _on_ray() -> Workers:
    from espalier.extras import install_command
    from espalier.records import EngineError

    try:
        from espalier.synthesis.bulk_ray_workers import ray_workers
    except ModuleNotFoundError as error:
        raise EngineError(
            f"--ray needs the package {error.name}, here and on the nodes: {install_command('ray')}"
        ) from error
    return ray_workers
