"""The viewer's process: it listens, and answers until it is interrupted."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

from starlette.types import ASGIApp

from espalier.config import ServingConfig
from espalier.records import ServingError
from espalier.wire.connections import Places
from espalier.wire.listening import BoundedServer, is_loopback, listening, within_open_files
from espalier_ui.app import ViewerApp
from espalier_ui.export import write_export
from espalier_ui.labels import LabelFile
from espalier_ui.runs import Run, RunCatalog

TOKEN_VARIABLE = "ESPALIER_UI_TOKEN"
"""Variable with the token; without it one is drawn where a token is needed."""
_LEAST_TOKEN = 16
_EXPORT_PATIENCE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewing:
    """What to show, and at which address."""

    roots: Sequence[Path | str]
    """Folders of runs, folders with such folders in them, or s3://bucket/prefix of a run."""
    host: str = "127.0.0.1"
    port: int = 8123
    labels: Path
    """File of labels."""
    cache: Path
    """Folder for indexes."""


def view(viewing: Viewing, say: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Raises:
        NoRunError: a folder is no run, and has none in it.
        ServingError: the address is taken, or the token is too short.
    """
    catalog = RunCatalog(viewing.roots, viewing.cache)
    bounds = within_open_files(ServingConfig(), say)
    token = token_for(viewing.host, os.environ.get(TOKEN_VARIABLE))
    app = ViewerApp(catalog, LabelFile(viewing.labels), bounds, token)
    with listening(viewing.host, viewing.port) as listener:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        runs = catalog.all()
        say(f"{len(runs)} run{'' if len(runs) == 1 else 's'} at {_with_token(address, token)}")
        try:
            asyncio.run(viewer_server(app, bounds).serve(sockets=[listener]))
        finally:
            app.talks.end()
            catalog.close()


def export_run(viewing: Viewing, target: Path) -> None:
    """Write the first run into one HTML file.

    Raises:
        NoRunError: a folder is no run, and has none in it.
        ArtifactError: the run cannot be read.
    """
    with _first_run(viewing) as (app, run):
        write_export(target, app, run.id)


def write_report(run_dir: Path, target: Path) -> None:
    """Write the report of a run: the same file, for which nothing of the run may be damaged.

    Index and labels of this user have no part in it.

    Raises:
        ArtifactError: the folder is no run, or an artifact was damaged after publishing.
    """
    with TemporaryDirectory(prefix="espalier-report-") as folder:
        own = Path(folder)
        viewing = Viewing(roots=[run_dir], labels=own / "labels.jsonl", cache=own)
        with _first_run(viewing) as (app, run):
            run.report.sections()
            write_export(target, app, run.id)


@contextmanager
def _first_run(viewing: Viewing) -> Iterator[tuple[ASGIApp, Run]]:
    """Yield the application over the runs, and the newest of them with its index made."""
    catalog = RunCatalog(viewing.roots, viewing.cache)
    app = ViewerApp(catalog, LabelFile(viewing.labels), ServingConfig(), token=None)
    try:
        run = catalog.all()[0]
        run.index.is_searched = False  # a file is not searched: its words need no index
        run.index.follow(patience_s=_EXPORT_PATIENCE_S)
        yield app.app(), run
    finally:
        catalog.close()


def viewer_server(app: ViewerApp, bounds: ServingConfig) -> BoundedServer:
    """Return the server of an application."""
    places = Places(bounds, _NoCounts())
    return BoundedServer(app.app(), places, drain_s=1.0, has_keys=app.has_token)


def token_for(host: str, given: str | None) -> str | None:
    """Return the token that requests need; None on loopback, unless one is given.

    Raises:
        ServingError: the given one could be guessed.
    """
    if given:
        if len(given) < _LEAST_TOKEN:
            raise ServingError(
                f"{TOKEN_VARIABLE} has {len(given)} characters; give {_LEAST_TOKEN} or more, or "
                "none, and one is drawn"
            )
        return given
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def default_cache() -> Path:
    """Return the folder of indexes where none is given."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "espalier" / "ui"


def default_labels() -> Path:
    """Return the file of labels where none is given."""
    given = os.environ.get("XDG_DATA_HOME")
    folder = Path(given) if given else Path.home() / ".local" / "share"
    return folder / "espalier" / "labels.jsonl"


def _with_token(address: str, token: str | None) -> str:
    return address if token is None else f"{address}?{urlencode({'token': token})}"


class _NoCounts:
    """Connection counters that count nothing, as nobody scrapes this server."""

    def count_closed(self, cause: str) -> None:
        """Do nothing."""

    def count_request(self, route: str, status: int) -> None:
        """Do nothing."""
