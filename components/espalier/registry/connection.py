"""Connection to MLflow: client settings, a quick probe of the server, the sqlite database, errors.

MLflow takes three seconds to import and reads its environment variables during the import, so it
is imported inside functions, after they are set.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from espalier.records import RegistryAwayError, RegistryError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

DATABASE_NAME = "mlflow.db"
"""Name of the sqlite database beside the runs, used if no server is configured."""

_URI_VARIABLE = "MLFLOW_TRACKING_URI"
_PROBE_TIMEOUT_S = 5.0
_SETTINGS = {
    # Wait about ten seconds for an unreachable server, not MLflow's four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    # Transfer files through the server: its artifact store may be reachable in the cluster only.
    "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
    "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
    # Synchronous, because traces are few: a stage killed later keeps those it wrote.
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_RECORD_ENV_VARS_IN_MODEL_LOGGING": "false",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Defaults for environment variables of MLflow's client; the user's own values win."""


@dataclass(frozen=True, slots=True)
class TrackingTarget:
    """Address of the MLflow server or database, and name of the experiment."""

    uri: str
    experiment: str

    @property
    def artifact_location(self) -> str | None:
        """Artifact folder beside a sqlite database; None if the server chooses."""
        if not self.uri.startswith(SQLITE):
            return None
        return str(database_path(self.uri).resolve().parent / "mlartifacts")

    @property
    def missing_database(self) -> Path | None:
        """Path of the sqlite database if it does not exist yet, else None."""
        if not self.uri.startswith(SQLITE):
            return None
        path = database_path(self.uri)
        return None if path.exists() else path


def tracking_target(default_database: Path, experiment: str) -> TrackingTarget:
    """Target at `MLFLOW_TRACKING_URI` if set, else the sqlite database `default_database`."""
    uri = os.environ.get(_URI_VARIABLE) or f"{SQLITE}{default_database.resolve()}"
    return TrackingTarget(uri, experiment)


def connect(uri: str) -> MlflowClient:
    """A client of the tracking server or database at `uri`, after checking that it answers.

    A missing sqlite database is created.

    Raises:
        RegistryAwayError: the server does not answer in 5 s.
        RegistryError: the address is invalid, or the database cannot be written.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if uri.startswith(("http://", "https://")):
        _check_server(uri)
    with reaching(uri, "open it"):
        if uri.startswith(SQLITE):
            ensure_database(database_path(uri))
        from mlflow import MlflowClient

        send_traces_to(uri)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    return client


def send_traces_to(uri: str) -> None:
    """Set MLflow's process-wide address, which traces use instead of their client's.

    MLflow also puts it into the environment, where the next run of this process would take it for
    an address that the user chose.
    """
    import mlflow

    given = os.environ.get(_URI_VARIABLE)
    mlflow.set_tracking_uri(uri)
    if given is None:
        os.environ.pop(_URI_VARIABLE, None)
    else:
        os.environ[_URI_VARIABLE] = given


@contextmanager
def reaching(uri: str, purpose: str) -> Iterator[None]:
    """Turn exceptions of MLflow into a RegistryError that names the server and `purpose`.

    Raises:
        RegistryAwayError: the server did not answer, or answered with status 429 or 5xx.
        RegistryError: MLflow refused, or its database or files could not be written.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        raise RegistryError(
            f"MLflow at {shown(uri)}: could not {purpose}: {type(error).__name__}: {error}. If the "
            "database is incomplete, move it away and run the command again."
        ) from error
    except MlflowException as error:
        kind = RegistryAwayError if _is_away(error) else RegistryError
        raise kind(f"MLflow at {shown(uri)}: could not {purpose}: {error.message}") from error
    except OSError as error:
        kind = RegistryAwayError if _is_connection_lost(error) else RegistryError
        raise kind(
            f"MLflow at {shown(uri)}: could not {purpose}: {error}. Check that the disk has "
            "room, that its folder can be written and that the server answers; then try again."
        ) from error


_UNANSWERED = "API request to "
"""Start of the message of MLflow's client for a failed connection (mlflow/utils/rest_utils.py)."""
_BAD_CERTIFICATE = "SSLError"
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500


def _is_away(error: MlflowException) -> bool:
    from mlflow.exceptions import RestException

    if isinstance(error, RestException):
        status = error.get_http_status_code()
        return status == _TOO_MANY_REQUESTS or status >= _SERVER_ERRORS
    message = error.message or ""
    return message.startswith(_UNANSWERED) and _BAD_CERTIFICATE not in message


def _is_connection_lost(error: OSError) -> bool:
    """Whether the network broke a file transfer; other OSErrors are local, such as a full disk."""
    from requests import RequestException
    from requests.exceptions import SSLError

    if isinstance(error, RequestException):
        answer = error.response
        return not isinstance(error, SSLError) and (
            answer is None or answer.status_code >= _SERVER_ERRORS
        )
    return isinstance(error, ConnectionError | TimeoutError)


def experiment_id(client: MlflowClient, target: TrackingTarget) -> str:
    """Id of the target's experiment, which is created if missing."""
    from mlflow.exceptions import MlflowException

    with reaching(target.uri, f"open the experiment {target.experiment}"):
        found = client.get_experiment_by_name(target.experiment)
        if found is None:
            try:
                return client.create_experiment(target.experiment, target.artifact_location)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = client.get_experiment_by_name(target.experiment)
    if found is None or found.lifecycle_stage != "active":
        raise RegistryError(
            f"MLflow at {shown(target.uri)}: the experiment {target.experiment} has been deleted. "
            "Restore it, or name another with --set registry.experiment=NAME."
        )
    return found.experiment_id


def shown(uri: str) -> str:
    """The URI without user and password, for messages."""
    parts = urllib.parse.urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _check_server(uri: str) -> None:
    try:
        with urllib.request.urlopen(uri, timeout=_PROBE_TIMEOUT_S):
            return
    except urllib.error.HTTPError as answer:
        answer.close()  # any status means it is up; the first real request shows permissions
    except (OSError, ValueError) as error:
        is_refused = isinstance(error, ValueError) or isinstance(
            getattr(error, "reason", None), ssl.SSLError
        )
        kind = RegistryError if is_refused else RegistryAwayError
        raise kind(
            f"MLflow at {shown(uri)} does not answer ({error}). Start the server, correct "
            "MLFLOW_TRACKING_URI, or unset it to track in a local sqlite database."
        ) from error


SQLITE = "sqlite:///"
_LOCK_TIMEOUT_S = 10.0


def database_path(uri: str) -> Path:
    """The file behind a sqlite URI."""
    return Path(uri.removeprefix(SQLITE).partition("?")[0])


def ensure_database(path: Path) -> None:
    """Check that the database is writable; create it if missing.

    MLflow retries a database that it cannot open for most of an hour, and one whose creation was
    killed can never be opened; so it is created under another name and renamed.

    Raises:
        RegistryError: the folder cannot be written, or the file is not a sqlite database.
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
    for leftover in path.parent.glob(f"{draft.name}*"):  # of a killed creation, with its journal
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
