"""Runs in MLflow: one parent a pipeline run, one nested run a stage, found again on resuming."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from espalier.records import NullTracker, RegistryError, Tracker
from espalier.registry.connection import TrackingTarget, connect, experiment_id, reaching, shown
from espalier.registry.source import source_tags
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
    """One pipeline run in MLflow: `tracker` writes to it, `stage` opens the runs nested in it."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle
        self.tracker = MlflowTracker(handle)

    @property
    def run_id(self) -> str:
        """MLflow's id of the parent run; kept by the caller, and given back on resuming."""
        return self._handle.run_id

    @property
    def environment(self) -> dict[str, str]:
        """What a step in another process needs to find this run (`tracker_from_environment`)."""
        return {_URI_VARIABLE: self._handle.uri, PARENT_VARIABLE: self.run_id}

    @contextmanager
    def stage(self, stage: str) -> Iterator[MlflowTracker]:
        """The stage's tracker; its run ends as finished, failed or killed with the block."""
        tracker = MlflowTracker(_stage_handle(self._handle, stage))
        with _ending(tracker):
            yield tracker

    def finish(self, status: str = "FINISHED") -> None:
        """Send what is pending and end the parent run (FINISHED, FAILED or KILLED).

        A run that did not finish ends those nested in it as well: the process of a stage may have
        been lost before it could.
        """
        if status != "FINISHED":
            self._end_nested(status)
        self.tracker.finish(status)

    def mark_killed(self) -> None:
        """End this run and those nested in it as KILLED, from any thread; sends no figures."""
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
    """Create the parent run of a pipeline run, or open it again.

    Args:
        target: from `tracking_target`.
        name: shown in the UI.
        tags: set on the run.
        run_id: the run of an earlier attempt. A run that its server no longer knows is replaced by
            a new one, tagged with the id that it continues. Without it, the run that
            `MLFLOW_RUN_ID` names is the parent (Kubeflow Pipelines may have made one).

    Raises:
        RegistryError: the server is away, or `MLFLOW_RUN_ID` names a run that it does not know.
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
    """The tracker of a stage that runs in a process of its own.

    Reads MLFLOW_TRACKING_URI, and the parent from ESPALIER_PARENT_RUN or else MLFLOW_RUN_ID.
    Without a URI it listens to nothing; without a parent the stage's run stands alone.

    Raises:
        RegistryError: the server is away, or does not know the parent.
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
    """`tracker_from_environment`, ended with the block: finished, failed or killed."""
    tracker = tracker_from_environment(stage)
    if isinstance(tracker, NullTracker):
        yield tracker
        return
    with _ending(tracker):
        yield tracker


def mark_killed(tracker: Tracker) -> None:
    """End the tracker's run as KILLED, from any thread; sends no figures."""
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
    """A handle on `run` set running again, or on a new run in the target's experiment."""
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
    """The stage's run below its parent: the one of an earlier attempt, or a new one."""
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
