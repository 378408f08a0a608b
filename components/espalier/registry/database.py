"""MLflow's sqlite database: created whole or not at all, and looked at before MLflow opens it."""

from __future__ import annotations

import fcntl
import sqlite3
from contextlib import closing
from pathlib import Path

from espalier.records import RegistryError

SQLITE = "sqlite:///"
_LOCK_TIMEOUT_S = 10.0


def database_path(uri: str) -> Path:
    """The file behind a sqlite URI."""
    return Path(uri.removeprefix(SQLITE).partition("?")[0])


def ensure_database(path: Path) -> None:
    """Check that the database can be written; create it where there is none.

    MLflow itself retries a database that it cannot open for the best part of an hour, and cannot
    open one again whose creation was killed half-way: so it is made under another name and renamed.

    Raises:
        RegistryError: the folder cannot be written, or the file is no sqlite database.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _is_made(path):
            with path.with_name(f".{path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_made(path):  # another process may have been first
                    _create(path)
        _probe(path)
    except (OSError, sqlite3.Error) as error:
        raise RegistryError(
            f"{path}: cannot be used as MLflow's database ({error}). Choose a folder that can be "
            "written, move the file away if it is damaged, or set MLFLOW_TRACKING_URI."
        ) from error


def _is_made(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _create(path: Path) -> None:
    draft = path.with_name(f".{path.name}.draft")
    for leftover in path.parent.glob(f"{draft.name}*"):  # a killed creation's, journal included
        leftover.unlink()
    _probe(draft)
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=f"{SQLITE}{draft.resolve()}").search_experiments(max_results=1)
    draft.replace(path)


def _probe(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("SELECT count(*) FROM sqlite_master")
        database.rollback()
