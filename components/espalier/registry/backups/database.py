"""MLflow's sqlite database: a consistent copy while a server writes it, and putting one back.

The copy is made by sqlite's online backup (sqlite.org/backup.html) in one step, so it is the state
between two transactions. Files of a database that is in use are never copied as files: a
transaction may be half in the file and half in its journal.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from espalier.records import RegistryError, file_digest
from espalier.registry.backups.record import DatabaseRecord
from espalier.registry.model import CHAMPION

_LOCK_TIMEOUT_S = 60.0
_JOURNALS = ("-journal", "-wal")
_SIDECARS = (*_JOURNALS, "-shm")
_STAMP = "%Y%m%dT%H%M%SZ"
_FILLED = ("runs", "registered_models", "model_versions", "trace_info")
"""Tables of MLflow that a server leaves empty when it makes its database."""


class _Held(NamedTuple):
    revision: str
    runs: int
    versions: int
    champions: dict[str, str]


def copy_database(path: Path, target: Path) -> DatabaseRecord:
    """Copy MLflow's database to the new file `target`, and check the copy.

    Args:
        path: of the database; it is opened for reading alone.
        target: file that is made.

    Raises:
        RegistryError: there is no database of MLflow's, it is damaged, or stays locked.
    """
    if not path.is_file():
        raise RegistryError(
            f"{path}: there is no database. --database names MLflow's sqlite file; where MLflow's "
            "tables are on a database server, leave it out and back that up with its own tools"
        )
    taken = datetime.now(UTC)
    with _explained(path):
        source = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)
        with closing(source), closing(sqlite3.connect(target)) as copy:
            # one step, for which writers wait; where one holds the lock it is tried again
            source.backup(copy, progress=_until(time.monotonic() + _LOCK_TIMEOUT_S))
        held = _checked(target)
    return DatabaseRecord(
        digest=file_digest(target),
        num_bytes=target.stat().st_size,
        taken=taken,
        **held._asdict(),
    )


def newer_than(path: Path, record: DatabaseRecord) -> str | None:
    """Why putting a backup in the place of the present database would lose something newer.

    Args:
        path: of the present database.
        record: of the backup.

    Returns:
        None where nothing would be lost: there is no database, none that can be read, one without
        runs and models, or one that nobody has written to since.
    """
    if not path.is_file():
        return None
    names = [path, *(path.with_name(path.name + suffix) for suffix in _SIDECARS)]
    written = max(name.stat().st_mtime for name in names if name.exists())
    moment = datetime.fromtimestamp(written, UTC)
    if moment <= record.taken or file_digest(path) == record.digest:
        return None
    try:
        filled = _num_filled(path)
    except sqlite3.DatabaseError:
        return None  # damaged: it is kept aside all the same
    if not filled:
        return None
    return (
        f"{path} was written at {moment:%Y-%m-%d %H:%M:%S} UTC, after the backup of "
        f"{record.taken:%Y-%m-%d %H:%M:%S}, and holds {filled} runs, models, versions and traces"
    )


def state_of(path: Path) -> tuple[tuple[int, int], ...]:
    """Sizes and times of a database and its journals; it differs once somebody has written."""
    parts = (path.with_name(path.name + suffix) for suffix in ("", *_JOURNALS))
    found = (part.stat() for part in parts if part.exists())
    # reading alone may leave an empty write-ahead log
    return tuple((each.st_size, each.st_mtime_ns) for each in found if each.st_size)


def replace_database(path: Path, copy: Path, now: datetime) -> Path | None:
    """Put a copy in the place of the database; nobody may have it open.

    Args:
        path: of the database.
        copy: that takes its place; it is checked, and stays.
        now: in UTC, for the name of what was there.

    Returns:
        Where the former database is kept; None if there was none.

    Raises:
        RegistryError: the copy is damaged, the database is in use, or the folder cannot be
            written.
    """
    draft = path.with_name(f".{path.name}.restore")
    with _explained(copy):
        _checked(copy)
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(copy, draft)
        with draft.open("rb") as stream:
            os.fsync(stream.fileno())
        kept = _set_aside(path, now)
        draft.replace(path)
        _sync(path.parent)
    return kept


def _set_aside(path: Path, now: datetime) -> Path | None:
    """Move the database away, with the journal that it may need, which is no other's."""
    present = [suffix for suffix in ("", *_SIDECARS) if path.with_name(path.name + suffix).exists()]
    if not present:
        return None
    kept = path.with_name(f"{path.name}.before-{now.strftime(_STAMP)}")
    if "" in present:
        _expect_unused(path)
    for suffix in ("", *_SIDECARS):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(kept.with_name(kept.name + suffix))
    return kept


def _expect_unused(path: Path) -> None:
    """Complete or undo a transaction that a kill left, and see that nobody holds a lock.

    Raises:
        sqlite3.OperationalError: somebody does.
    """
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
            database.execute("BEGIN EXCLUSIVE")
            database.execute("ROLLBACK")
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return  # not a database any more


def _checked(path: Path) -> _Held:
    with closing(sqlite3.connect(path)) as database:
        (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        (revision,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
        (runs,) = database.execute("SELECT count(*) FROM runs").fetchone()
        (versions,) = database.execute("SELECT count(*) FROM model_versions").fetchone()
        champions = database.execute(
            "SELECT name, version FROM registered_model_aliases WHERE alias = ? ORDER BY name",
            (CHAMPION,),
        ).fetchall()
    return _Held(revision, runs, versions, {name: str(version) for name, version in champions})


def _num_filled(path: Path) -> int:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        counted = [
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in _FILLED
            if table in tables
        ]
    return sum(counted)


def _until(end_s: float) -> Callable[[int, int, int], None]:
    def progress(status: int, _remaining: int, _total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > end_s:
            raise sqlite3.OperationalError(f"locked for {_LOCK_TIMEOUT_S:g} s")

    return progress


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise RegistryError(
            f"{path}: {error}. Where it is locked, stop what uses it, and try again; where a "
            "table is missing, it is not MLflow's database"
        ) from error
    except (sqlite3.DatabaseError, TypeError) as error:
        raise RegistryError(
            f"{path}: damaged, or not MLflow's database ({error}). Restore a backup of it"
        ) from error
    except OSError as error:
        raise RegistryError(
            f"{path}: cannot be read or written ({error.strerror}). Free space, or mend the "
            "permissions"
        ) from error
