"""backup create, backup list, backup verify, backup restore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from espalier.cli.app import JsonOption, backup, examples, print_json, resumable

if TYPE_CHECKING:
    from espalier.registry.backups import BackupRecord

StoreArgument = Annotated[
    str, typer.Argument(metavar="URI", help="Where backups lie: s3://BUCKET/PREFIX.")
]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Of a backup; default: the newest.")
]


@backup.command(
    epilog=examples(
        "espalier backup create s3://espalier-backup/nightly --database /var/lib/mlflow/mlflow.db "
        "--files s3://espalier-mlflow --keep 14",
        "espalier backup create s3://espalier-backup/runs --files s3://espalier/runs "
        "--exclude checkpoints/",
    )
)
def create(
    *,
    uri: StoreArgument,
    database: Annotated[
        Path | None,
        typer.Option("--database", help="MLflow's sqlite file; its server may go on."),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--files", metavar="URI", help="s3://BUCKET or s3://BUCKET/PREFIX to copy; repeatable."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", metavar="START", help="Leave out names that begin so; repeatable."
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=1, help="Delete all but so many backups; default: none."),
    ] = None,
) -> None:
    """Copy MLflow's database and buckets, while both are in use, as one backup.

    Objects that did not change since the backup before are neither read nor sent. What is copied is
    named by its SHA-256, and a backup counts once it is whole. Prints its name.
    """
    import os

    from espalier.registry.backups import Source, create_backup, open_store
    from espalier.registry.backups.store import utc_now
    from espalier.storage.tree import open_tree

    if database is None and not files:
        raise typer.BadParameter("name what to copy: --database FILE, --files URI, or both")
    store = open_store(uri, os.environ)
    sources = [Source(open_tree(each, os.environ), tuple(exclude or ())) for each in files or ()]
    with resumable("Earlier backups are whole; make this one by"):
        record = create_backup(store, database, sources, now=utc_now(), say=_say)
        if keep is not None:
            for gone in store.prune(keep, utc_now()):
                _say(f"{store.uri}: deleted {gone}")
    typer.echo(record.name)


@backup.command(
    name="list",
    epilog=examples("espalier backup list s3://espalier-backup/nightly"),
)
def list_backups(*, uri: StoreArgument, as_json: JsonOption = False) -> None:
    """List the backups, the newest first: size, runs, versions, champions."""
    import os

    from espalier.records import StorageError
    from espalier.registry.backups import open_store

    store = open_store(uri, os.environ)
    records: list[BackupRecord] = []
    for name in store.names():
        try:
            records.append(store.record(name))
        except StorageError as error:
            _say(str(error))
    if as_json:
        print_json([_described(record) for record in records])
        return
    typer.echo(f"{'name':<25} {'MB':>10} {'objects':>8} {'runs':>6} {'versions':>8}  champions")
    for record in records:
        held = record.database
        champions = held.champions.items() if held else ()
        typer.echo(
            f"{record.name:<25} {record.num_bytes / 1e6:>10.1f} {record.num_objects:>8} "
            f"{held.runs if held else '-':>6} {held.versions if held else '-':>8}  "
            f"{', '.join(f'{model}/{version}' for model, version in champions) or '-'}"
        )


@backup.command(
    epilog=examples(
        "espalier backup verify s3://espalier-backup/nightly",
        "espalier backup verify s3://espalier-backup/nightly 20261123T221500Z-3f9a01c2",
    )
)
def verify(*, uri: StoreArgument, name: NameArgument = None) -> None:
    """Read every byte of a backup and compare it with its SHA-256; fails where one is lost."""
    import os

    from espalier.records import StorageError
    from espalier.registry.backups import open_store

    store = open_store(uri, os.environ)
    record = store.record(name)
    if faulty := store.verify(record, _say):
        raise StorageError(
            f"{store.uri}: {len(faulty)} of {len(record.digests)} contents of the backup "
            f"{record.name} are lost or damaged. Make another: `espalier backup create`"
        )
    typer.echo(f"{record.name}: {len(record.digests)} contents, {record.num_bytes / 1e6:.1f} MB")


@backup.command(
    epilog=examples(
        "espalier backup restore s3://espalier-backup/nightly --database /var/lib/mlflow/mlflow.db",
        "espalier backup restore s3://espalier-backup/nightly 20261123T221500Z-3f9a01c2 --dry-run",
    )
)
def restore(
    *,
    uri: StoreArgument,
    name: NameArgument = None,
    database: Annotated[
        Path | None,
        typer.Option(
            "--database", help="MLflow's sqlite file, whose server is stopped; default: objects."
        ),
    ] = None,
    overwrite_newer: Annotated[
        bool, typer.Option("--overwrite-newer", help="Go on where something newer is lost.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")
    ] = False,
) -> None:
    """Put a backup where it came from: its objects, and then MLflow's database.

    Every byte is checked. Nothing is deleted: other objects stay, and the former database is kept
    beside the restored one. The same command completes a restore that was killed.
    """
    import os

    from espalier.registry.backups import RestorePlan, expect_no_server, open_store
    from espalier.registry.backups.store import utc_now
    from espalier.storage.tree import open_tree

    store = open_store(uri, os.environ)
    record = store.record(name)
    if database is not None and not dry_run:
        expect_no_server(os.environ.get("MLFLOW_TRACKING_URI"))
    trees = {each: open_tree(each, os.environ) for each in record.objects}
    plan = RestorePlan(store, record, database, trees)
    missing = plan.missing
    _say(
        f"{record.name}: {plan.num_unchanged} objects are there, {len(missing)} to write, "
        f"{sum(missing.values()) / 1e6:.1f} MB"
    )
    if dry_run:
        for line in (*missing, *(f"newer: {line}" for line in plan.newer())):
            typer.echo(line)
        return
    if not overwrite_newer:
        plan.expect_nothing_newer()
    with resumable("The same command completes the restore"):
        done = plan.carry_out(utc_now())
    for made in done.made_buckets:
        _say(f"{made}: made the bucket")
    if done.kept_database is not None:
        _say(f"the former database is {done.kept_database}")
    typer.echo(f"restored {record.name}")


def _described(record: BackupRecord) -> dict[str, object]:
    held = record.database
    return {
        "name": record.name,
        "created": record.created.isoformat(),
        "espalier": record.espalier,
        "mb": round(record.num_bytes / 1e6, 1),
        "objects": record.num_objects,
        "files": sorted(record.objects),
        "runs": held.runs if held else None,
        "versions": held.versions if held else None,
        "champions": dict(held.champions) if held else {},
        "mlflow_revision": held.revision if held else None,
    }


def _say(line: str) -> None:
    typer.echo(line, err=True)
