"""Runs of Kubeflow Pipelines: list, show, follow, stop, retry; the log of a failed step.

The server's description of a run (2.17, files below backend/src/apiserver):

- `run_details.task_details` has every node of the Argo workflow, as the persistence agent last
  reported it: name, state, times and children (server/api_converter.go, toModelTasks and
  toApiPipelineTaskDetail). Users know only the steps among them and the nested pipelines, which
  look alike here; drivers, the nodes "root" and "executor", and attempts are internal to KFP.
- Error fields of runs and tasks are never filled. A node's message and its pod's name are only in
  the workflow, which GetRun of v1beta1 returns (toApiRunDetailV1).
- Argo's "Omitted" (a step that was not reached) is an empty state here.
- A terminated run ends as FAILED; its history has CANCELING if that was reported before the end.
- Logs come from the pod or from the archive. The API server has them under v1alpha1 and answers
  200 even without a log, with a JSON error as the text (server/run_log_server.go); the UI server
  does not forward that path and has one of its own (frontend/server/app.ts).
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from pydantic import BaseModel, Field, ValidationError

from espalier.cluster.kubeflow import (
    ACTIVE_STATES,
    KubeflowApi,
    KubeflowAwayError,
    parsed_answer,
)
from espalier.records import ClusterError

SUCCEEDED, FAILED, OMITTED = "SUCCEEDED", "FAILED", "OMITTED"
_FINAL_STATES = frozenset({SUCCEEDED, FAILED, "CANCELED", "SKIPPED"})
_NEWEST_FIRST = "created_at desc"
_PAGE_SIZE = 100
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ATTEMPT = re.compile(r".*\(\d+\)")
"""Argo's name of an attempt. KFP's workflow-controller-configmap gives every template a retry
strategy, so that each step and driver has nodes of attempts below it."""
_DRIVER = "-driver"
_UNSET_YEARS = frozenset({1, 1970})
"""Years of Go's and Unix' zero times, which the server sends for times that are not set."""
_SAME_NAMED = 10
"""Number of runs with the same name that an error lists."""
_LATE_REPORTS = 3
"""Number of times that an ended run is read again for the states of its steps: the server stores
them after the run's state (server/report_server.go, reportWorkflow)."""
_CLOCK_S = 5.0
"""Seconds between two reads of a run."""
_PATIENCE_S = 900.0
"""Seconds for which an unreachable server is tolerated: the run itself does not need it."""


class Step(NamedTuple):
    """One step of a run, or a nested pipeline of steps."""

    name: str
    state: str
    """Kubeflow's state; OMITTED if the step was not reached."""
    started: datetime | None
    ended: datetime | None
    message: str = ""
    """Reason why it waits or failed; set by `explained`."""
    pod: str = ""
    """Pod of its last attempt; set by `explained`."""
    attempts: int = 0
    """Number of its pods; set by `explained`. A nested pipeline has none."""

    @property
    def seconds(self) -> float | None:
        """Seconds from start to end; None before the end."""
        if self.started is None or self.ended is None:
            return None
        return (self.ended - self.started).total_seconds()


class Run(NamedTuple):
    """A run of Kubeflow Pipelines."""

    id: str
    name: str
    state: str
    created: datetime | None
    ended: datetime | None
    parameters: dict[str, Any]
    steps: tuple[Step, ...]
    was_stopped: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, with success or without."""
        return self.state in _FINAL_STATES

    @property
    def seconds(self) -> float | None:
        """Seconds from creation to end; None before the end."""
        if self.created is None or self.ended is None:
            return None
        return (self.ended - self.created).total_seconds()

    @property
    def failed_step(self) -> Step | None:
        """The step that failed first; a nested pipeline began before it and ends with it."""
        failed = [step for step in self.steps if step.state == FAILED]
        return min(reversed(failed), key=_end, default=None)


class _Child(BaseModel):
    pod_name: str = ""


class _Task(BaseModel):
    display_name: str = ""
    state: str = ""
    start_time: datetime | None = None
    end_time: datetime | None = None
    child_tasks: list[_Child] = Field(default_factory=list)


class _Details(BaseModel):
    task_details: list[_Task] = Field(default_factory=list)


class _Status(BaseModel):
    state: str = ""


class _Runtime(BaseModel):
    parameters: dict[str, Any] = Field(default_factory=dict)


class _Run(BaseModel):
    """Fields of V2beta1Run that are needed."""

    run_id: str = Field(min_length=1)
    display_name: str = ""
    state: str = ""
    storage_state: str = ""
    created_at: datetime | None = None
    finished_at: datetime | None = None
    runtime_config: _Runtime | None = None
    run_details: _Details | None = None
    state_history: list[_Status] = Field(default_factory=list)


class _Node(BaseModel):
    """Fields of an Argo workflow's node that are needed."""

    id: str = ""
    name: str = ""
    display_name: str = Field(default="", alias="displayName")
    template: str = Field(default="", alias="templateName")
    type: str = ""
    phase: str = ""
    message: str = ""
    started: datetime | None = Field(default=None, alias="startedAt")

    @property
    def has_failed(self) -> bool:
        return self.phase in ("Failed", "Error")


class _Metadata(BaseModel):
    name: str = ""
    annotations: dict[str, str] = Field(default_factory=dict)


class _WorkflowStatus(BaseModel):
    message: str = ""
    nodes: dict[str, _Node] = Field(default_factory=dict)


class _Workflow(BaseModel):
    metadata: _Metadata = Field(default_factory=_Metadata)
    status: _WorkflowStatus = Field(default_factory=_WorkflowStatus)


def runs(api: KubeflowApi, limit: int) -> list[Run]:
    """The newest runs of the namespace that are not archived, newest first.

    Raises:
        ClusterError: the server is unreachable or refuses.
    """
    found: list[Run] = []
    for record in _listed(api, page_size=min(limit, _PAGE_SIZE)):
        if len(found) == limit:
            break
        if record.get("storage_state") != "ARCHIVED":
            found.append(parsed_run(record))
    return found


def run_named(api: KubeflowApi, which: str) -> Run:
    """The run with the name or id `which`.

    Raises:
        ClusterError: there is none, or several with the name; the server is unreachable or refuses.
    """
    if _RUN_ID.fullmatch(which) and (found := _read(api, which)) is not None:
        return found
    named = {"operation": "EQUALS", "key": "display_name", "string_value": which}
    # quoted once more: the server unquotes the filter a second time (list_request_util.go,
    # parseAPIFilter), and would read the plus sign of a name as a blank
    query = quote(json.dumps({"predicates": [named]}))
    same_named = [parsed_run(record) for record in _listed(api, filter=query)]
    if not same_named:
        raise ClusterError(
            f"{api.endpoint}: no run {which}. `espalier runs list` shows names and ids"
        )
    if len(same_named) > 1:
        listed = "; ".join(f"{run.id} ({run.state})" for run in same_named[:_SAME_NAMED])
        more = len(same_named) - _SAME_NAMED
        raise ClusterError(
            f"{api.endpoint}: {len(same_named)} runs are named {which}; give an id, newest first: "
            f"{listed}{f' and {more} older ones' if more > 0 else ''}"
        )
    return same_named[0]


def _listed(api: KubeflowApi, **query: object) -> Iterator[dict[str, Any]]:
    listing = api.runs.run_service_list_runs
    return api.listed(
        "list runs", "runs", listing,
        namespace=api.config.namespace, sort_by=_NEWEST_FIRST, **query,
    )  # fmt: skip


def read_run(api: KubeflowApi, run_id: str) -> Run:
    """The run with the id.

    Raises:
        KubeflowAwayError: the server is unreachable.
        ClusterError: there is no such run, or the server refuses.
    """
    found = _read(api, run_id)
    if found is None:
        raise ClusterError(f"{api.endpoint}: no run {run_id}: it has been deleted")
    return found


def _read(api: KubeflowApi, run_id: str) -> Run | None:
    record = api.read("read the run", api.runs.run_service_get_run, run_id)
    return None if record is None else parsed_run(record)


def parsed_run(record: object) -> Run:
    """Parse a run as the server sends it.

    Raises:
        ClusterError: `record` is no V2beta1Run.
    """
    found = parsed_answer(_Run, record, "a run")
    tasks = found.run_details.task_details if found.run_details else []
    last_states = [status.state for status in found.state_history[-2:]]
    return Run(
        id=found.run_id,
        name=found.display_name,
        state=found.state,
        created=_set_time(found.created_at),
        ended=_set_time(found.finished_at),
        parameters=found.runtime_config.parameters if found.runtime_config else {},
        steps=_steps(tasks),
        was_stopped="CANCELING" in last_states,  # an earlier CANCELING was before a retry
    )


def _steps(tasks: Sequence[_Task]) -> tuple[Step, ...]:
    # a child's name is its node's id, WORKFLOW-HASH; the root node has the workflow's name
    workflows = {child.pod_name.rpartition("-")[0] for task in tasks for child in task.child_tasks}
    own = workflows | {"root", "executor"}
    steps: dict[str, Step] = {}
    drivers: dict[str, Step] = {}
    for task in tasks:
        name = task.display_name
        if not workflows or not name or name in own or _ATTEMPT.fullmatch(name):
            continue
        step = Step(name, OMITTED, None, None)
        if task.state:
            started, ended = _set_time(task.start_time), _set_time(task.end_time)
            step = Step(name, task.state, started, ended)
        if name.endswith(_DRIVER):
            drivers[name.removesuffix(_DRIVER)] = step
        else:
            steps[name] = step
    for name, driver in drivers.items():
        # a step whose driver fails is omitted
        if driver.state == FAILED and (name not in steps or steps[name].state == OMITTED):
            shown = driver.name if name == "root" else name
            steps[name] = driver._replace(name=shown)
    return tuple(sorted(steps.values(), key=_order))


def _order(step: Step) -> tuple[bool, float, str]:
    started = step.started
    return started is None, started.timestamp() if started else 0.0, step.name


def _end(step: Step) -> float:
    return step.ended.timestamp() if step.ended else float("inf")


def _set_time(time: datetime | None) -> datetime | None:
    return None if time is None or time.year in _UNSET_YEARS else time


def explained(api: KubeflowApi, run: Run) -> Run:
    """The run with messages, pods and attempts of its steps, where the server still has them.

    Raises:
        ClusterError: the server is unreachable or refuses.
    """
    record = api.read("read the run's workflow", api.get, f"/apis/v1beta1/runs/{run.id}")
    runtime = (record or {}).get("pipeline_runtime")
    manifest = runtime.get("workflow_manifest") if isinstance(runtime, dict) else None
    if not manifest:  # not reported yet, or a server without v1beta1
        return run
    try:
        workflow = _Workflow.model_validate_json(manifest)
    except ValidationError:
        return run  # states and times do not come from the workflow
    steps = tuple(_explained_step(step, workflow) for step in run.steps)
    return run._replace(steps=steps)


def _explained_step(step: Step, workflow: _Workflow) -> Step:
    nodes = list(workflow.status.nodes.values())
    below = _below(nodes, step.name)
    if any(node.name.endswith("-driver") for node in below):
        return step  # a nested pipeline, with drivers of its steps
    if not any(node.has_failed for node in below):
        driver = _below(nodes, step.name + _DRIVER)
        below = driver if any(node.has_failed for node in driver) else below
    pods = sorted((node for node in below if node.type == "Pod"), key=_start)
    failed = [node for node in pods if node.has_failed]
    last = (failed or pods or below or [None])[-1]
    if last is None:
        return step
    messages = [last.message, *(node.message for node in below)]
    return step._replace(
        message=next((message for message in messages if message), ""),
        pod=_pod_name(workflow.metadata, last) if last.type == "Pod" else "",
        attempts=len(pods),
    )


def _below(nodes: Sequence[_Node], name: str) -> list[_Node]:
    """The node with the name and its descendants, found by full names, which are paths.

    `children` is of no use: in Argo, the nodes that follow a pod are its children, too.
    """
    roots = [node.name for node in nodes if node.display_name == name]
    if not roots:
        return []
    root = min(roots, key=len)
    inner = (f"{root}.", f"{root}(")
    return [node for node in nodes if node.name == root or node.name.startswith(inner)]


def _start(node: _Node) -> float:
    started = _set_time(node.started)
    return started.timestamp() if started else float("inf")


def _pod_name(workflow: _Metadata, node: _Node) -> str:
    # as backend/src/common/util/workflow.go, RetrievePodName
    if workflow.annotations.get("workflows.argoproj.io/pod-name-format") == "v1":
        return node.id
    if node.name == workflow.name:
        return workflow.name
    middle = "" if ".inline" in node.name else f"-{node.template}"
    return f"{workflow.name}{middle}-{node.id.rpartition('-')[2]}"


_LAUNCHER_LINE = re.compile(r"[IW]\d{4} \d\d:\d\d:\d\d|time=\S+ level=INFO .*argo=true")
"""Log lines of Kubeflow's launcher and Argo's executor, which run before and after a step."""


def log_end(api: KubeflowApi, run: Run, step: Step, lines: int) -> list[str]:
    """The last lines of the log of a step's pod, without the launcher's; `step` from `explained`.

    Raises:
        ClusterError: the log does not exist any more, or the server is unreachable.
    """
    if not step.pod:
        raise ClusterError(f"{step.name} has no pod")
    text = None
    if not api.serves_ui():
        text = api.text(f"/apis/v1alpha1/runs/{run.id}/nodes/{step.pod}/log")
    if text is None:
        created = run.created.date().isoformat() if run.created else None
        query = {
            "podname": step.pod, "runid": run.id,
            "podnamespace": api.config.namespace, "createdat": created,
        }  # fmt: skip
        given = {key: value for key, value in query.items() if value is not None}
        text = api.text("/k8s/pod/logs", **given)
    kept = deque((line for line in text or () if not _LAUNCHER_LINE.match(line)), maxlen=lines)
    if not kept or (len(kept) == 1 and _is_error(kept[0])):
        raise ClusterError(f"the log of the pod {step.pod} is not kept any more")
    return [line.rstrip() for line in kept]


def _is_error(line: str) -> bool:
    try:
        content = json.loads(line)
    except ValueError:
        return False
    return isinstance(content, dict) and "error_message" in content


def stop(api: KubeflowApi, which: str) -> Run:
    """Terminate a run that has not ended.

    Raises:
        ClusterError: there is no such run, or it has ended; the server is unreachable or refuses.
    """
    run = run_named(api, which)
    if run.is_over:
        raise ClusterError(f"{run.name} ({run.id}) has ended: {run.state}")
    api.write(f"stop the run {run.name}", api.runs.run_service_terminate_run, run.id)
    return run


def retry(api: KubeflowApi, which: str) -> Run:
    """Repeat the steps of a failed run that did not succeed; the others keep their results.

    Raises:
        ClusterError: no such run, or it has not failed; the server is unreachable or refuses.
    """
    run = run_named(api, which)
    if run.state != FAILED:  # workflow.go, GenerateRetryExecution: "must be Failed/Error to retry"
        raise ClusterError(
            f"{run.name} ({run.id}) is {run.state}; only a failed run can be retried. Start "
            "another with `espalier submit`"
        )
    api.write(f"retry the run {run.name}", api.runs.run_service_retry_run, run.id)
    return run


def follow(
    api: KubeflowApi,
    run_id: str,
    report: Callable[[Step], None],
    away: Callable[[ClusterError], None],
    sleep: Callable[[float], None],
) -> Run:
    """Wait for the end of a run.

    Args:
        api: connection to the server.
        run_id: id of the run.
        report: called with a step when it has started, and when it has ended.
        away: called with the error, once, when the server stops answering; reads continue.
        sleep: waits for a number of seconds.

    Raises:
        ClusterError: the server refuses, or does not answer for 15 minutes.
    """
    reported: dict[str, str] = {}
    silent_s, reads_after_end = 0.0, 0
    while True:
        try:
            run = read_run(api, run_id)
        except KubeflowAwayError as error:
            if silent_s >= _PATIENCE_S:
                raise
            if not silent_s:
                away(error)
            silent_s += _CLOCK_S
        else:
            silent_s = 0.0
            for step in run.steps:
                _report_changes(step, reported, report)
            if run.is_over:
                is_late = any(step.state in ACTIVE_STATES for step in run.steps)
                if not is_late or reads_after_end == _LATE_REPORTS:
                    return run
                reads_after_end += 1
        sleep(_CLOCK_S)


def _report_changes(step: Step, reported: dict[str, str], report: Callable[[Step], None]) -> None:
    before = reported.get(step.name)
    for states in (_FINAL_STATES, ACTIVE_STATES):
        if step.state in states and before not in states:
            report(step)
    reported[step.name] = step.state
