"""MLflow runs: one parent per pipeline run and one nested run per stage, reopened on resuming."""

from __future__ import annotations

import getpass
import logging
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import espalier
from espalier.records import NullTracker, RegistryError, Tracker
from espalier.registry.connection import TrackingTarget, connect, experiment_id, reaching, shown
from espalier.registry.tracker import (
    PARENT_TAG,
    STAGE_TAG,
    SUPERSEDED_TAG,
    MlflowTracker,
    RunHandle,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PARENT_VARIABLE = "ESPALIER_PARENT_RUN"
_URI_VARIABLE = "MLFLOW_TRACKING_URI"
_RUN_VARIABLE = "MLFLOW_RUN_ID"
_EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"

_log = logging.getLogger(__name__)


class ParentRun:
    """The MLflow run of a pipeline run: `tracker` writes to it, `stage` opens nested runs."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle
        self.tracker = MlflowTracker(handle)

    @property
    def run_id(self) -> str:
        """MLflow's id of the parent run, which the caller stores for resuming."""
        return self._handle.run_id

    @property
    def environment(self) -> dict[str, str]:
        """Environment from which `tracker_from_environment` finds this run in another process."""
        return {_URI_VARIABLE: self._handle.uri, PARENT_VARIABLE: self.run_id}

    @contextmanager
    def stage(self, stage: str) -> Iterator[MlflowTracker]:
        """The stage's tracker; the end of the block ends its run as finished, failed or killed."""
        tracker = MlflowTracker(_stage_handle(self._handle, stage))
        with _ending(tracker):
            yield tracker

    def finish(self, status: str = "FINISHED") -> None:
        """Send pending figures and end the parent run as FINISHED, FAILED or KILLED.

        Unless it finished, running nested runs end with the same status: the process of a stage
        may have died before it could end its own.
        """
        if status != "FINISHED":
            self._end_nested(status)
        self.tracker.finish(status)

    def mark_killed(self) -> None:
        """End this run and its nested runs as KILLED, from any thread; sends no figures."""
        self._end_nested("KILLED")
        mark_killed(self.tracker)

    def _end_nested(self, status: str) -> None:
        handle = self._handle
        query = f"tags.`{PARENT_TAG}` = '{handle.run_id}' and attributes.status = 'RUNNING'"
        try:
            with reaching(handle.uri, "end the runs of the stages"):
                for run in handle.client.search_runs([handle.experiment_id], query):
                    handle.client.set_terminated(run.info.run_id, status)
        except RegistryError as error:
            _log.warning("%s", error)


def open_parent_run(
    target: TrackingTarget, name: str, tags: Mapping[str, str], run_id: str | None = None
) -> ParentRun:
    """Create the parent run of a pipeline run, or reopen it.

    Args:
        target: from `tracking_target`.
        name: shown in the UI.
        tags: set on the run.
        run_id: the run of an earlier attempt; if the server no longer has it, a new run is created
            with this id in a tag. None takes the run of `MLFLOW_RUN_ID`, which Kubeflow Pipelines
            may have set, or else creates one.

    Raises:
        RegistryError: the server is unreachable, or does not have the run of `MLFLOW_RUN_ID`.
    """
    client = connect(target.uri)
    injected = os.environ.get(_RUN_VARIABLE)
    run = _find_run(client, target.uri, run_id or injected)
    if run is None and injected and not run_id:
        raise RegistryError(
            f"MLFLOW_RUN_ID={injected}: no such run at {shown(target.uri)}. Unset it, or point "
            "MLFLOW_TRACKING_URI at the server that has the run."
        )
    continued = {"espalier.continues": run_id} if run is None and run_id else {}
    handle = _opened(client, target, run, name, {**tags, **continued})
    return ParentRun(handle)


def tracker_from_environment(stage: str) -> MlflowTracker | NullTracker:
    """The tracker of a stage that runs in its own process.

    Reads MLFLOW_TRACKING_URI, and the parent from ESPALIER_PARENT_RUN or else MLFLOW_RUN_ID.
    Without a URI it records nothing; without a parent the stage's run has no parent.

    Raises:
        RegistryError: the server is unreachable, or does not have the parent run.
    """
    uri = os.environ.get(_URI_VARIABLE)
    if not uri:
        return NullTracker()
    client = connect(uri)
    parent_id = os.environ.get(PARENT_VARIABLE) or os.environ.get(_RUN_VARIABLE)
    if not parent_id:
        target = TrackingTarget(uri, os.environ.get(_EXPERIMENT_VARIABLE) or "espalier")
        return MlflowTracker(_opened(client, target, None, stage, {STAGE_TAG: stage}))
    parent = _find_run(client, uri, parent_id)
    if parent is None:
        raise RegistryError(
            f"{stage}: its parent run {parent_id} is not known at {shown(uri)}. Point "
            f"{_URI_VARIABLE} at the server that has it, or unset "
            f"{PARENT_VARIABLE} and {_RUN_VARIABLE}."
        )
    return MlflowTracker(_stage_handle(_handle(client, uri, parent), stage))


@contextmanager
def stage_tracking(stage: str) -> Iterator[Tracker]:
    """`tracker_from_environment`, whose run ends with the block as finished, failed or killed."""
    tracker = tracker_from_environment(stage)
    if isinstance(tracker, NullTracker):
        yield tracker
        return
    with _ending(tracker):
        yield tracker


def mark_killed(tracker: Tracker) -> None:
    """End the tracker's run as KILLED; callable from any thread, sends no figures."""
    if not isinstance(tracker, MlflowTracker):
        return
    run = tracker.run
    try:
        with reaching(run.uri, "end the run"):
            run.client.set_terminated(run.run_id, "KILLED")
    except RegistryError as error:
        _log.warning("%s", error)


@contextmanager
def _ending(tracker: MlflowTracker) -> Iterator[None]:
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.finish(status)


def _opened(
    client: MlflowClient, target: TrackingTarget, run: Run | None, name: str, tags: dict[str, str]
) -> RunHandle:
    """Handle of `run`, set to RUNNING, or of a new run in the target's experiment."""
    if run is None:
        experiment = experiment_id(client, target)
        with reaching(target.uri, f"open a run for {name}"):
            run = client.create_run(experiment, tags={**source_tags(), **tags}, run_name=name)
    else:
        with reaching(target.uri, f"open the run {run.info.run_id} again"):
            client.update_run(run.info.run_id, "RUNNING")
            for key, value in {**source_tags(), **tags}.items():
                client.set_tag(run.info.run_id, key, value)
    return _handle(client, target.uri, run)


def _stage_handle(parent: RunHandle, stage: str) -> RunHandle:
    """The stage's nested run: that of an earlier attempt, or a new one."""
    query = f"tags.`{STAGE_TAG}` = '{stage}' and tags.`{PARENT_TAG}` = '{parent.run_id}'"
    with reaching(parent.uri, f"open the run of stage {stage}"):
        found = parent.client.search_runs(
            [parent.experiment_id], query, order_by=["attributes.start_time DESC"]
        )
        current = [run for run in found if SUPERSEDED_TAG not in run.data.tags]
        if current:
            run = current[0]
            parent.client.update_run(run.info.run_id, "RUNNING")
        else:
            tags = {**source_tags(), STAGE_TAG: stage, PARENT_TAG: parent.run_id}
            run = parent.client.create_run(parent.experiment_id, tags=tags, run_name=stage)
    return _handle(parent.client, parent.uri, run)


def _handle(client: MlflowClient, uri: str, run: Run) -> RunHandle:
    return RunHandle(
        client=client,
        uri=uri,
        run_id=run.info.run_id,
        experiment_id=run.info.experiment_id,
        parent_run_id=run.data.tags.get(PARENT_TAG),
    )


def _find_run(client: MlflowClient, uri: str, run_id: str | None) -> Run | None:
    from mlflow.exceptions import MlflowException

    if not run_id:
        return None
    with reaching(uri, f"look up the run {run_id}"):
        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise
    return run if run.info.lifecycle_stage == "active" else None


_GIT_TIMEOUT_S = 5.0


@cache
def source_tags() -> dict[str, str]:
    """MLflow's tags for the source of a run: user, version, and the commit if known."""
    package = Path(espalier.__file__).parent
    tags = {
        "mlflow.user": operator(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": "espalier",
        "espalier.version": espalier.__version__,
    }
    if commit := commit_of(package):
        tags["mlflow.source.git.commit"] = commit
        tags["mlflow.source.git.dirty"] = str(bool(_git(package, "status", "--porcelain", ".")))
    return tags


def commit_of(package: Path) -> str | None:
    """The commit of the checkout that tracks `package`; None if it is installed."""
    # an installed package may lie inside the checkout of another project, whose commit would be
    # wrong: so git has to track the package's own files
    if _git(package, "ls-files", "__init__.py") != "__init__.py":
        return None
    return _git(package, "rev-parse", "HEAD")


def operator() -> str:
    """The user's name, or "unknown"."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's numeric user has no name
        return "unknown"


def _git(folder: Path, *arguments: str) -> str | None:
    """The stripped output of git; None if git is missing, fails or takes over 5 s."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
