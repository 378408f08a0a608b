"""data fetch, data collect; packages beside the core add check-queries, draw-questions, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import data, examples


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
