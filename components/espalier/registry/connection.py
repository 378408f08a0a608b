"""The door to MLflow: quiet settings, a quick look whether anyone answers, one error for all.

MLflow takes three seconds to import and reads its settings while it is imported, so it is imported
here, inside functions, after the settings have been made.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from espalier.records import RegistryError
from espalier.registry.database import SQLITE, database_path, ensure_database

if TYPE_CHECKING:
    from mlflow import MlflowClient

DATABASE_NAME = "mlflow.db"
"""Of the sqlite database beside the runs, where no server is named."""

_PROBE_TIMEOUT_S = 5.0
_SETTINGS = {
    # A server that is briefly away is waited for about ten seconds, not for MLflow's four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    # Through the server: its artifact store may have a name inside the cluster alone.
    "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
    "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
    # Traces are few and written where they arise: a stage killed later has them.
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_RECORD_ENV_VARS_IN_MODEL_LOGGING": "false",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Environment of MLflow's client; each only where the user has not set it."""


@dataclass(frozen=True, slots=True)
class TrackingTarget:
    """Where runs and model versions go."""

    uri: str
    experiment: str

    @property
    def artifact_location(self) -> str | None:
        """A folder beside a sqlite database; None where the server decides."""
        if not self.uri.startswith(SQLITE):
            return None
        return str(database_path(self.uri).resolve().parent / "mlartifacts")

    @property
    def missing_database(self) -> Path | None:
        """The sqlite database, where there is none yet."""
        if not self.uri.startswith(SQLITE):
            return None
        path = database_path(self.uri)
        return None if path.exists() else path


def tracking_target(default_database: Path, experiment: str) -> TrackingTarget:
    """`MLFLOW_TRACKING_URI` where it is set, else the sqlite database `default_database`."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{default_database.resolve()}"
    return TrackingTarget(uri, experiment)


def connect(uri: str) -> MlflowClient:
    """A client of the tracking server or database at `uri`, after a look whether it answers.

    A sqlite database is created where there is none.

    Raises:
        RegistryError: nobody answers within a few seconds, or the database cannot be written.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if uri.startswith(("http://", "https://")):
        _check_server(uri)
    with reaching(uri, "open it"):
        if uri.startswith(SQLITE):
            ensure_database(database_path(uri))
        import mlflow
        from mlflow import MlflowClient

        # Traces, unlike everything else, go where the process-wide setting points.
        mlflow.set_tracking_uri(uri)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    return client


@contextmanager
def reaching(uri: str, purpose: str) -> Iterator[None]:
    """Turn what MLflow raises into one error that names the server and what was being done.

    Raises:
        RegistryError: MLflow refused, or could not be reached or written.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        raise RegistryError(
            f"MLflow at {shown(uri)}: could not {purpose}: {type(error).__name__}: {error}. If the "
            "database was left half-made, move it away and run the command again."
        ) from error
    except MlflowException as error:
        raise RegistryError(
            f"MLflow at {shown(uri)}: could not {purpose}: {error.message}"
        ) from error
    except OSError as error:
        raise RegistryError(
            f"MLflow at {shown(uri)}: could not {purpose}: {error}. Check that the disk has "
            "room, that its folder can be written and that the server answers; then try again."
        ) from error


def experiment_id(client: MlflowClient, target: TrackingTarget) -> str:
    """The experiment named in the target, created where there is none."""
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
            f"MLflow at {shown(target.uri)}: the experiment {target.experiment} was deleted. "
            "Restore it, or name another with --set registry.experiment=NAME."
        )
    return found.experiment_id


def shown(uri: str) -> str:
    """The URI without user and password, fit for a message."""
    parts = urllib.parse.urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _check_server(uri: str) -> None:
    try:
        with urllib.request.urlopen(uri, timeout=_PROBE_TIMEOUT_S):
            return
    except urllib.error.HTTPError as answer:
        answer.close()  # any status is an answer; what it allows is seen at the first request
    except (OSError, ValueError) as error:
        raise RegistryError(
            f"MLflow at {shown(uri)} does not answer ({error}). Start the server, mend "
            "MLFLOW_TRACKING_URI, or unset it to track in a local sqlite database."
        ) from error
