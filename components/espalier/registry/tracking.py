"""MLflow runs: one parent per pipeline run, one nested run per stage, reopened when resumed.

A stage in a process of its own finds its parent by the first of these that is set:

    ESPALIER_PARENT_RUN   set by `espalier run`, whose process ends the parent
    MLFLOW_RUN_ID         set by whoever created the Job; in a Kubeflow step by its MLflow plugin,
                          which makes a run for each task below those of its part and of the
                          pipeline, and ends them. If Kubeflow repeats a task, the plugin makes
                          another run for it; the stage's own run goes on, moved below the newest
    ESPALIER_RUN_ID       id of the Kubeflow run: the first stage makes the parent, with the tag
                          `kubeflow.run_id`. No process holds it open: each stage sets it to RUNNING
                          when it begins; a failed stage or the last one ends it
"""

from __future__ import annotations

import getpass
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import espalier
from espalier.chain import CHAIN
from espalier.config import Profile
from espalier.records import (
    CompositeTracker,
    NullTracker,
    RegistryError,
    Tracker,
    patiently,
    run_label,
)
from espalier.registry.connection import TrackingTarget, connect, experiment_id, reaching, shown
from espalier.registry.tracker import (
    NOTE_TAG,
    PARENT_TAG,
    STAGE_TAG,
    SUPERSEDED_TAG,
    VIEWER_TAG,
    MlflowTracker,
    RunHandle,
    send_unsent,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PARENT_VARIABLE = "ESPALIER_PARENT_RUN"
KUBEFLOW_RUN_VARIABLE = "ESPALIER_RUN_ID"
KUBEFLOW_RUN_TAG = "kubeflow.run_id"
_URI_VARIABLE = "MLFLOW_TRACKING_URI"
_RUN_VARIABLE = "MLFLOW_RUN_ID"
_EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"
_EXPERIMENT_ID_VARIABLE = "MLFLOW_EXPERIMENT_ID"
_SETTLE_S = 2.0
"""Longer than a request takes: if two steps make a parent at once, each then sees both."""

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
        """Environment variables by which `tracker_from_environment` finds this run elsewhere."""
        return {_URI_VARIABLE: self._handle.uri, PARENT_VARIABLE: self.run_id}

    @contextmanager
    def stage(self, stage: str) -> Iterator[MlflowTracker]:
        """Open the stage's tracker; its run ends with the block as finished, failed or killed."""
        send_unsent(self._handle)
        handle = _stage_handle(self._handle, stage)
        tracker = MlflowTracker(replace(handle, unsent=self._handle.unsent))
        with ending(tracker.finish):
            yield tracker

    def finish(self, status: str = "FINISHED") -> None:
        """Send pending figures and end the parent run as FINISHED, FAILED or KILLED.

        Unless FINISHED, nested runs that are still running get the same status, since the process
        of a stage may have died before it ended its own.
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
    target: TrackingTarget,
    name: str,
    tags: Mapping[str, str],
    run_id: str | None = None,
    *,
    unsent: Path | None = None,
) -> ParentRun:
    """Create the parent run of a pipeline run, or reopen it.

    Args:
        target: from `tracking_target`.
        name: shown in the UI.
        tags: set on the run.
        run_id: run of an earlier attempt; if the server no longer has it, a new run is created with
            this id in a tag. None takes the run of `MLFLOW_RUN_ID`, which Kubeflow Pipelines may
            have set, or else creates one.
        unsent: folder that keeps figures while the server is away; those that are there are sent
            now, and before each stage.

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
    handle = replace(handle, unsent=unsent)
    send_unsent(handle)
    return ParentRun(handle)


def viewer_tags(profile: Profile, run_dir: Path | None = None) -> dict[str, str]:
    """Return the tag that links a run in MLflow to the viewer; {} without `registry.viewer`.

    Args:
        profile: the run's profile.
        run_dir: the run's folder; without one the link is to the viewer's list of runs.
    """
    if profile.registry.viewer is None:
        return {}
    address = f"{profile.registry.viewer.rstrip('/')}/"
    return {VIEWER_TAG: address if run_dir is None else f"{address}?run={run_label(run_dir)}"}


def tracker_from_environment(stage: str, profile: Profile) -> MlflowTracker | NullTracker:
    """Tracker of a stage that runs in its own process.

    Without MLFLOW_TRACKING_URI it records nothing; without a parent (see the module) the stage's
    run stands alone. New runs belong to the experiment of MLFLOW_EXPERIMENT_ID or
    MLFLOW_EXPERIMENT_NAME, or else to the profile's.

    Raises:
        RegistryAwayError: the server is unreachable.
        RegistryError: the server does not have the parent run, or the experiment.
    """
    uri = os.environ.get(_URI_VARIABLE)
    if not uri:
        return NullTracker()
    return patiently(lambda: MlflowTracker(_opened_stage(uri, stage, profile)))


def _opened_stage(uri: str, stage: str, profile: Profile) -> RunHandle:
    client = connect(uri)
    parent_id = os.environ.get(PARENT_VARIABLE) or os.environ.get(_RUN_VARIABLE)
    if parent_id:
        parent = _find_run(client, uri, parent_id)
        if parent is None:
            raise RegistryError(
                f"{stage}: its parent run {parent_id} does not exist at {shown(uri)}. Point "
                f"{_URI_VARIABLE} at the server that has it, or unset "
                f"{PARENT_VARIABLE} and {_RUN_VARIABLE}."
            )
        with reaching(uri, f"look up earlier attempts at {stage}"):
            earlier = _earlier_attempts(client, parent)
        above = _handle(client, uri, parent)
        viewer = above.viewer or viewer_tags(profile).get(VIEWER_TAG)
        handle = _stage_handle(replace(above, viewer=viewer), stage, earlier)
        is_plugins = parent_id != os.environ.get(PARENT_VARIABLE)
        return replace(handle, ends_parent="killed" if is_plugins else "never")
    experiment = _experiment(client, uri, profile)
    if kubeflow_run := os.environ.get(KUBEFLOW_RUN_VARIABLE):
        parent = _run_of_kubeflow(client, uri, experiment, kubeflow_run, profile)
        handle = _stage_handle(_handle(client, uri, parent), stage)
        return replace(handle, ends_parent="always")
    with reaching(uri, f"open a run for {stage}"):
        tags = {**source_tags(), STAGE_TAG: stage, **viewer_tags(profile)}
        return _handle(client, uri, client.create_run(experiment, tags=tags, run_name=stage))


def _earlier_attempts(client: MlflowClient, task: Run) -> list[str]:
    """Ids of runs that Kubeflow's plugin made for earlier attempts at a task, the newest first.

    The plugin makes one whenever a task's driver runs (Kubeflow Pipelines 2.17,
    backend/src/v2/common/plugins/mlflow/handler.go), with the task's name and the run's as parent.
    """
    of_run = task.data.tags.get(PARENT_TAG)
    if of_run is None:
        return []
    found = client.search_runs(
        [task.info.experiment_id],
        f"tags.`{PARENT_TAG}` = '{of_run}'",
        order_by=["attributes.start_time DESC"],
    )
    ids = [run.info.run_id for run in found if run.info.run_name == task.info.run_name]
    return [run_id for run_id in ids if run_id != task.info.run_id]


def _experiment(client: MlflowClient, uri: str, profile: Profile) -> str:
    """Id of the experiment for runs without a parent."""
    from mlflow.exceptions import MlflowException

    given = os.environ.get(_EXPERIMENT_ID_VARIABLE)
    if not given:
        name = os.environ.get(_EXPERIMENT_VARIABLE) or profile.registry.experiment
        return experiment_id(client, TrackingTarget(uri, name))
    with reaching(uri, f"look up the experiment {given}"):
        try:
            found = client.get_experiment(given)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise RegistryError(
                f"{_EXPERIMENT_ID_VARIABLE}={given}: no such experiment at {shown(uri)}. Unset it, "
                f"or point {_URI_VARIABLE} at the server that has it."
            ) from error
    return found.experiment_id


def _run_of_kubeflow(
    client: MlflowClient, uri: str, experiment: str, kubeflow_run: str, profile: Profile
) -> Run:
    """Parent run of a Kubeflow run's stages, set to RUNNING.

    MLflow cannot create a run only if there is none. A stage that creates one therefore looks again
    after a moment: the oldest stays, by the same rule for all, and whoever made another deletes it.
    """
    with reaching(uri, f"open the run of Kubeflow's run {kubeflow_run}"):
        found = _oldest(client, experiment, kubeflow_run)
        if found is None:
            made = client.create_run(
                experiment,
                tags={
                    **source_tags(),
                    "espalier.profile": profile.name,
                    KUBEFLOW_RUN_TAG: kubeflow_run,
                    **viewer_tags(profile),
                    NOTE_TAG: f"Profile `{profile.name}`, Kubeflow run `{kubeflow_run}`.",
                },
                run_name=profile.name,
            )
            time.sleep(_SETTLE_S)
            found = _oldest(client, experiment, kubeflow_run) or made
            if found.info.run_id != made.info.run_id:
                client.delete_run(made.info.run_id)
        if found.info.status != "RUNNING":
            client.update_run(found.info.run_id, "RUNNING")
    return found


def _oldest(client: MlflowClient, experiment: str, kubeflow_run: str) -> Run | None:
    query = f"tags.`{KUBEFLOW_RUN_TAG}` = '{kubeflow_run}'"
    found = client.search_runs([experiment], query)
    return min(found, key=lambda run: (run.info.start_time, run.info.run_id), default=None)


@contextmanager
def stage_tracking(stage: str, profile: Profile) -> Iterator[Tracker]:
    """Open `tracker_from_environment`; its run ends with the block as finished, failed or killed.

    A parent that no process holds open ends with the last stage of the chain, or with a stage that
    fails or is killed.
    """
    tracker = tracker_from_environment(stage, profile)
    if isinstance(tracker, NullTracker):
        yield tracker
        return

    def end_parent(status: str) -> None:
        if status != "FINISHED" or stage == CHAIN[-1].name:
            _end_parent(tracker.run, status)

    with ending(end_parent), ending(tracker.finish):
        yield tracker


def mlflow_run(tracker: Tracker) -> RunHandle | None:
    """Run that the tracker, or the first of several, writes to; None if none is MLflow's."""
    if isinstance(tracker, MlflowTracker):
        return tracker.run
    parts = tracker.trackers if isinstance(tracker, CompositeTracker) else ()
    return next(filter(None, map(mlflow_run, parts)), None)


@contextmanager
def ending(finish: Callable[[str], None]) -> Iterator[None]:
    """Call `finish` with FINISHED, FAILED or KILLED when the block ends.

    An interrupted library may raise an error of its own in place of KeyboardInterrupt, which counts
    as KILLED too.
    """
    status = "FINISHED"
    try:
        yield
    except BaseException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__ or cause.__context__
        status = "FAILED" if cause is None else "KILLED"
        raise
    finally:
        finish(status)


def mark_killed(tracker: Tracker) -> None:
    """End the tracker's run as KILLED; callable from any thread, sends no figures.

    A parent that no process holds open ends with it.
    """
    if not isinstance(tracker, MlflowTracker):
        return
    run = tracker.run
    try:
        with reaching(run.uri, "end the run"):
            run.client.set_terminated(run.run_id, "KILLED")
        _end_parent(run, "KILLED")
    except RegistryError as error:
        _log.warning("%s", error)


def _end_parent(run: RunHandle, status: str) -> None:
    """End the parent where that is left to the stage (`RunHandle.ends_parent`).

    Raises:
        RegistryAwayError: the server is away. If the stage did not finish, this is only logged.
    """
    is_due = run.ends_parent == "always" or (run.ends_parent, status) == ("killed", "KILLED")
    if not is_due or run.parent_run_id is None:
        return
    parent_id = run.parent_run_id

    def end() -> None:
        with reaching(run.uri, "end the parent run"):
            run.client.set_terminated(parent_id, status)

    if status == "FINISHED":
        patiently(end)
        return
    try:
        end()
    except RegistryError as error:
        _log.warning("%s", error)


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


def _stage_handle(parent: RunHandle, stage: str, earlier: Sequence[str] = ()) -> RunHandle:
    """Handle of the stage's nested run: that of an earlier attempt, or a new one.

    Args:
        parent: the run that it is nested in.
        stage: name of the stage.
        earlier: ids of runs that it may be nested in so far; it is moved below `parent`.
    """
    with reaching(parent.uri, f"open the run of stage {stage}"):
        run = _current_run(parent, stage, earlier)
        if run is None:
            tags = {**source_tags(), STAGE_TAG: stage, PARENT_TAG: parent.run_id}
            run = parent.client.create_run(parent.experiment_id, tags=tags, run_name=stage)
        else:
            if run.data.tags[PARENT_TAG] != parent.run_id:
                parent.client.set_tag(run.info.run_id, PARENT_TAG, parent.run_id)
            parent.client.update_run(run.info.run_id, "RUNNING")
        if parent.viewer is not None and run.data.tags.get(VIEWER_TAG) != parent.viewer:
            parent.client.set_tag(run.info.run_id, VIEWER_TAG, parent.viewer)
    own = replace(_handle(parent.client, parent.uri, run), stage=stage, viewer=parent.viewer)

    # the pipeline's run is at the top of the tree
    top, above = parent.run_id, parent.parent_run_id
    with reaching(parent.uri, "look up the run of the pipeline"):
        while above is not None:
            top = above
            above = parent.client.get_run(top).data.tags.get(PARENT_TAG)
    return replace(own, parent_run_id=parent.run_id, pipeline_run_id=top)


def _current_run(parent: RunHandle, stage: str, earlier: Sequence[str]) -> Run | None:
    """The newest run of the stage below `parent`, else below an earlier one."""
    for above in (parent.run_id, *earlier):
        query = f"tags.`{STAGE_TAG}` = '{stage}' and tags.`{PARENT_TAG}` = '{above}'"
        found = parent.client.search_runs(
            [parent.experiment_id], query, order_by=["attributes.start_time DESC"]
        )
        current = [run for run in found if SUPERSEDED_TAG not in run.data.tags]
        if current:
            return current[0]
    return None


def _handle(client: MlflowClient, uri: str, run: Run) -> RunHandle:
    return RunHandle(
        client=client,
        uri=uri,
        run_id=run.info.run_id,
        experiment_id=run.info.experiment_id,
        parent_run_id=run.data.tags.get(PARENT_TAG),
        pipeline_run_id=run.data.tags.get(PARENT_TAG),
        stage=run.data.tags.get(STAGE_TAG, ""),
        viewer=run.data.tags.get(VIEWER_TAG),
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
    # git has to track the package's own files: an installed package may lie inside the checkout of
    # another project, whose commit would be wrong
    if _git(package, "ls-files", "__init__.py") != "__init__.py":
        return None
    return _git(package, "rev-parse", "HEAD")


def operator() -> str:
    """Name of the user, or "unknown"."""
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
