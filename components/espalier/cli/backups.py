"""backup create, backup list, backup verify, backup restore."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from espalier.cli.app import JsonOption, backup, examples, print_json, resumable

if TYPE_CHECKING:
    from collections.abc import Generator

    from espalier.registry.backups import BackupRecord

StoreArgument = Annotated[
    str, typer.Argument(metavar="URI", help="Where backups lie: s3://BUCKET/PREFIX.")
]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Of a backup; default: the newest.")
]

INCOMPLETE = 3
"""Exit code: there is a backup, and something is missing from it. restic's is the same."""
_SHOWN = 5


@backup.command(
    epilog=examples(
        "espalier backup create s3://espalier-backup/nightly --database /var/lib/mlflow/mlflow.db "
        "--files s3://espalier-mlflow --keep 14",
        "espalier backup create s3://espalier-backup/runs --files s3://espalier/runs "
        "--exclude kept/ --exclude checkpoints/ --exclude '**/steps/*/checkpoint/'",
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
            "--exclude",
            metavar="GLOB",
            help="Leave out names, from the start of those below --files: * and ? stop at /, "
            "** does not, **/ is any depth, DIR/ is all below DIR; quote it. Repeatable.",
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", min=1, help="Delete all but so many complete backups; default: none."
        ),
    ] = None,
) -> None:
    """Copy MLflow's database and buckets, while both are in use, as one backup.

    Objects that did not change since the backup before are neither read nor sent. What is copied is
    named by its SHA-256, and a backup counts once it is whole. Prints its name.

    What cannot be read is named and left out, the rest is backed up, and the exit code is 3; it is
    75 where a server was away, so that another try may succeed.
    """
    import os

    from espalier.registry.backups import Source, create_backup, open_store
    from espalier.registry.backups.store import utc_now
    from espalier.storage.objects import open_tree

    if database is None and not files:
        raise typer.BadParameter("name what to copy: --database FILE, --files URI, or both")
    store = open_store(uri, os.environ)
    sources = [Source(open_tree(each, os.environ), tuple(exclude or ())) for each in files or ()]
    damaged: dict[str, str] = {}
    with _another_try(), resumable("Earlier backups are whole; make this one by"):
        record = create_backup(store, database, sources, now=utc_now(), say=_say)
        typer.echo(record.name)
        for glob in exclude or ():
            if not any(glob in globs for globs in record.excluded.values()):
                _say(f"--exclude {glob} leaves nothing out")
        if keep is not None:
            pruned = store.prune(keep, utc_now())
            damaged = pruned.damaged
            for gone in pruned.gone:
                _say(f"{store.uri}: deleted {gone}")
    for name, why in damaged.items():
        _say(f"error: the earlier backup {name} is damaged: {why}")
    if damaged:
        _say(
            "no content is deleted while what a damaged backup needs is not known. It goes once "
            f"{keep} complete ones are newer; until then nothing but space is lost"
        )
    if not record.is_complete:
        _say(f"error: the backup {record.name} is incomplete, {len(record.faults)} not in it")
    if damaged or not record.is_complete:
        raise typer.Exit(INCOMPLETE)


@backup.command(
    name="list",
    epilog=examples("espalier backup list s3://espalier-backup/nightly"),
)
def list_backups(*, uri: StoreArgument, as_json: JsonOption = False) -> None:
    """List the backups, the newest first: whether complete, size, runs, versions, champions."""
    import os

    from espalier.registry.backups import open_store

    store = open_store(uri, os.environ)
    found = store.records(lambda name, why: _say(f"{name}: damaged: {why}"))
    records = [record for _, record in found]
    if as_json:
        print_json([_described(record) for record in records])
        return
    typer.echo(
        f"{'name':<25} {'complete':<8} {'MB':>10} {'objects':>8} {'left out':>8} {'runs':>6} "
        f"{'versions':>8}  champions"
    )
    for record in records:
        held = record.database
        champions = held.champions.items() if held else ()
        typer.echo(
            f"{record.name:<25} {'yes' if record.is_complete else 'no':<8} "
            f"{record.num_bytes / 1e6:>10.1f} {record.num_objects:>8} "
            f"{sum(record.num_excluded.values()):>8} "
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
    """Read every byte of a backup and compare it with its SHA-256; fails where one is lost.

    Names what was left out of it. The exit code is 3 where all that it has is whole, but something
    could not be backed up.
    """
    import os

    from espalier.records import StorageError
    from espalier.registry.backups import open_store

    store = open_store(uri, os.environ)
    record = store.record(name)
    if faulty := store.verify(record, _say):
        raise StorageError(
            f"{store.uri}: {len(faulty)} of {len(record.digests)} contents of the backup "
            f"{record.name} are lost or damaged. Delete those objects: `espalier backup create` "
            "then sends them again, where what they are copies of is still there"
        )
    typer.echo(f"{record.name}: {len(record.digests)} contents, {record.num_bytes / 1e6:.1f} MB")
    for address, number in record.num_excluded.items():
        _say(f"left out by --exclude: {number} objects of {address}")
    for where, why in record.faults.items():
        _say(f"error: not in the backup: {where}: {why}")
    if not record.is_complete:
        raise typer.Exit(INCOMPLETE)


@backup.command(
    epilog=examples(
        "espalier backup restore s3://espalier-backup/nightly --database /var/lib/mlflow/mlflow.db",
        "espalier backup restore s3://espalier-backup/nightly 20261123T221500Z-3f9a01c2 --dry-run",
        "espalier backup restore s3://espalier-backup/nightly --only s3://espalier/runs/run-7",
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
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="URI",
            help="Of objects, only those at or below s3://BUCKET/PREFIX; repeatable.",
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
    beside the restored one. What is written while it runs is not overwritten: it is named, and the
    command fails. The same command completes a restore that was killed.
    """
    import os

    from espalier.registry.backups import RestorePlan, expect_no_server, open_store
    from espalier.registry.backups.store import utc_now
    from espalier.storage.objects import open_tree

    store = open_store(uri, os.environ)
    if database is not None and not dry_run:
        expect_no_server(os.environ.get("MLFLOW_TRACKING_URI"))
    with _another_try():
        record = store.record(name)
        trees = {each: open_tree(each, os.environ) for each in record.objects}
        plan = RestorePlan(store, record, database, trees, tuple(only or ()))
    missing = plan.missing
    _say(
        f"{record.name}: {plan.num_unchanged} objects are there, {len(missing)} to write, "
        f"{sum(missing.values()) / 1e6:.1f} MB"
    )
    if not record.is_complete:
        faults = [*record.faults][:_SHOWN]
        _say(f"{record.name} is incomplete: {len(record.faults)} not in it, {', '.join(faults)}")
    if dry_run:
        for line in (*missing, *(f"newer: {line}" for line in plan.newer())):
            typer.echo(line)
        for address, number in record.num_excluded.items():
            _say(f"not in the backup, by --exclude: {number} objects of {address}")
        return
    if not overwrite_newer:
        plan.expect_nothing_newer()
    with _another_try(), resumable("The same command completes the restore"):
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
        "complete": record.is_complete,
        "faults": dict(record.faults),
        "excluded": record.num_excluded,
        "files": sorted(record.objects),
        "runs": held.runs if held else None,
        "versions": held.versions if held else None,
        "champions": dict(held.champions) if held else {},
        "mlflow_revision": held.revision if held else None,
    }


@contextmanager
def _another_try() -> Generator[None]:
    """Within the block, a server that is away ends the command so that a Job tries again."""
    from espalier.records import StorageAwayError
    from espalier.steps.refusing import TRY_AGAIN

    try:
        yield
    except StorageAwayError as error:
        _say(f"error: {error}")
        raise typer.Exit(TRY_AGAIN) from error


def _say(line: str) -> None:
    typer.echo(line, err=True)
