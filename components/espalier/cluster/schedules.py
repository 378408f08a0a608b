"""Recurring runs of Kubeflow: create, list, pause, resume, delete.

A schedule has at most one run at a time, and starts no runs for times before it was created or
resumed: a late retraining run would read the same data as the next one. Kubeflow's `no_catchup` is
not enough for that. With it, the controller (backend/src/crd/controller/scheduledworkflow/util,
cron_schedule.go and scheduled_workflow.go) still starts one run at once for the latest time missed
since the last run or since a start in the past. So a start in the past is not sent, and a schedule
is resumed as a new one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import kfp_server_api
from pydantic import BaseModel, Field

from espalier.cluster.cron import checked_cron, cron_in, zone
from espalier.cluster.kubeflow import (
    ACTIVE_STATES,
    Compile,
    KubeflowApi,
    parsed_answer,
    run_fields,
)
from espalier.records import ClusterError

_IN_PLACE_OF = re.compile(r"\(espalier: in place of (\S+)\)")
"""Marker in a resumed schedule's description: id of the paused schedule that it replaces."""
_COPIED = (
    "display_name", "pipeline_version_reference", "pipeline_spec", "runtime_config",
    "service_account", "max_concurrency", "no_catchup", "experiment_id", "plugins_input",
)  # fmt: skip
"""Fields of V2beta1RecurringRun that are copied to a resumed schedule. The namespace is not: a
single-user Kubeflow returns its own there, but refuses it as input (resource_manager.go,
GetValidExperimentNamespacePair)."""
_KEEP_RUNS = "ORPHAN"
"""Deletes a schedule without its runs. It owns their workflows, so that otherwise a run in progress
would end (resource_manager.go, DeleteJob; recurring_run.proto, DeletePropagationPolicy)."""
_RUNS_ASKED = 200
"""Number of the newest runs that are searched for an active run of a schedule."""


class _Cron(BaseModel):
    cron: str = ""


class _Trigger(BaseModel):
    cron_schedule: _Cron | None = None


class _Runtime(BaseModel):
    parameters: dict[str, Any] = Field(default_factory=dict)


class _RecurringRun(BaseModel):
    """Fields of V2beta1RecurringRun that are needed."""

    recurring_run_id: str = Field(min_length=1)
    display_name: str = ""
    description: str = ""
    status: str = ""
    trigger: _Trigger | None = None
    runtime_config: _Runtime | None = None


class When(NamedTuple):
    """Times at which runs start, as given by the user."""

    cron: str
    start: str | None = None
    """ISO 8601; None means now."""
    end: str | None = None
    timezone: str | None = None
    """Zone of `cron` and of times without an offset; None means Kubeflow's own zone."""


class Times(NamedTuple):
    """Times at which runs start, in Kubeflow's format."""

    trigger: kfp_server_api.V2beta1Trigger
    notes: tuple[str, ...] = ()
    """Differences from the given times, for the user."""


def times(when: When, controller_zone: str, now: datetime) -> Times:
    """Kubeflow's trigger for the given times.

    A start in the past is left out, because Kubeflow would start a run for it at once. A start in
    the future is sent a second early: the first run is at the first time *after* it
    (cron_schedule.go), and a start at midnight should include that midnight.

    Args:
        when: times as given by the user.
        controller_zone: `kubernetes.kubeflow.timezone`.
        now: current time.

    Raises:
        ClusterError: the expression or a time is invalid, the end is before the start or in the
            past, or the expression cannot be converted to the controller's zone.
    """
    start = _time("--start", when.start, when.timezone)
    end = _time("--end", when.end, when.timezone)
    cron = checked_cron(when.cron)
    if start is not None and end is not None and end <= start:
        raise ClusterError(f"--end {when.end} is not after --start {when.start}")
    if end is not None and end <= now:
        raise ClusterError(f"--end {when.end} is in the past: no run would be started")
    notes: list[str] = []
    if start is not None and start <= now:
        notes.append(
            f"--start {when.start} is in the past: the first run is at the next time of the cron "
            "expression, without runs for earlier times"
        )
        start = None
    if when.timezone is not None:
        meant, cron = cron, cron_in(cron, when.timezone, controller_zone, start or now, end)
        if cron != meant:
            notes.append(
                f"Kubeflow stores and lists {meant!r} in {when.timezone} as {cron!r} in "
                f"{controller_zone}"
            )
    if start is not None:
        start -= timedelta(seconds=1)
    schedule = kfp_server_api.V2beta1CronSchedule(cron=cron, start_time=start, end_time=end)
    return Times(kfp_server_api.V2beta1Trigger(cron_schedule=schedule), tuple(notes))


class Schedule(NamedTuple):
    """A recurring run of Kubeflow."""

    id: str
    name: str
    status: str
    """ENABLED or DISABLED."""
    cron: str
    parameters: dict[str, Any]
    in_place_of: str | None = None
    """Id of the paused schedule that it replaces."""


class Resumed(NamedTuple):
    """A resumed schedule, and notes for the user."""

    id: str
    notes: tuple[str, ...] = ()


def create(api: KubeflowApi, name: str, trigger: Times, compile_to: Compile) -> str:
    """Create a schedule and return its id.

    Args:
        api: connection to the server.
        name: display name that no other schedule has.
        trigger: times of its runs.
        compile_to: writes the compiled pipeline.

    Raises:
        ProfileError: the profile or an override is invalid.
        ClusterError: the name is in use; the server is unreachable or refuses.
    """
    if any(found.name == name for found in schedules(api)):
        raise ClusterError(
            f"{api.endpoint}: a schedule {name} exists already. Delete it "
            f"(`espalier schedule delete {name}`), or choose another name"
        )
    recurring_run = kfp_server_api.V2beta1RecurringRun(
        display_name=name,
        trigger=trigger.trigger,
        mode="ENABLE",
        max_concurrency="1",  # a string in v2beta1 (int64 in JSON)
        no_catchup=True,
        namespace=api.config.namespace,
        **run_fields(api, compile_to),
    )
    creating = api.recurring_runs.recurring_run_service_create_recurring_run
    return parsed_schedule(api.write(f"create the schedule {name}", creating, recurring_run)).id


def schedules(api: KubeflowApi) -> list[Schedule]:
    """All schedules of the namespace, in the server's order.

    Raises:
        ClusterError: the server is unreachable or refuses.
    """
    listing = api.recurring_runs.recurring_run_service_list_recurring_runs
    listed = api.listed("list schedules", "recurringRuns", listing, namespace=api.config.namespace)
    return [parsed_schedule(found) for found in listed]


def parsed_schedule(found: object) -> Schedule:
    """Parse an entry of the server's listing.

    Raises:
        ClusterError: `found` is no V2beta1RecurringRun.
    """
    run = parsed_answer(_RecurringRun, found, "a schedule")
    trigger = run.trigger.cron_schedule if run.trigger else None
    replaces = _IN_PLACE_OF.search(run.description)
    return Schedule(
        id=run.recurring_run_id,
        name=run.display_name,
        status=run.status,
        cron=trigger.cron if trigger else "",
        parameters=run.runtime_config.parameters if run.runtime_config else {},
        in_place_of=replaces[1] if replaces else None,
    )


def pause(api: KubeflowApi, which: str) -> Schedule:
    """Start no more runs until `resume`; a run in progress continues.

    Raises:
        ClusterError: no such schedule; the server is unreachable or refuses.
    """
    found = _found(api, which, schedules(api))
    disabling = api.recurring_runs.recurring_run_service_disable_recurring_run
    api.write(f"pause the schedule {found.name}", disabling, found.id)
    return found


def resume(api: KubeflowApi, which: str, now: datetime) -> Resumed:
    """Start runs again from the next time on, by replacing the paused schedule with a new one.

    Enabling the paused schedule would start a run for the latest missed time. The new one is
    created before the paused one is deleted, so nothing is lost if this is interrupted, and the
    same command then deletes the paused one. A schedule that catches up (created by other tools) is
    enabled instead, because its missed runs are wanted.

    Args:
        api: connection to the server.
        which: name or id.
        now: current time.

    Raises:
        ClusterError: no such schedule, or it has ended; the server is unreachable or refuses.
    """
    known = schedules(api)
    found = _found(api, which, known)
    newer = [one for one in known if one.in_place_of == found.id]
    if newer:
        _replace(api, found.id, newer[0])
        return Resumed(newer[0].id)
    if found.status == "ENABLED":
        if any(one.id == found.in_place_of for one in known):
            _replace(api, str(found.in_place_of), found)
            return Resumed(found.id)
        return Resumed(found.id, (f"{found.name} was not paused",))
    getting = api.recurring_runs.recurring_run_service_get_recurring_run
    record = api.read(f"read the schedule {found.name}", getting, found.id)
    if record is None:
        raise ClusterError(f"{api.endpoint}: the schedule {found.name} has just been deleted")
    if not record.get("no_catchup"):
        enabling = api.recurring_runs.recurring_run_service_enable_recurring_run
        api.write(f"resume the schedule {found.name}", enabling, found.id)
        note = f"{found.name} catches up: Kubeflow starts a run for every missed time"
        return Resumed(found.id, (note,))
    creating = api.recurring_runs.recurring_run_service_create_recurring_run
    anew = _copied(record, api.config.namespace, now)
    made = parsed_schedule(api.write(f"resume the schedule {found.name}", creating, anew))
    _replace(api, found.id, made)
    notes = [f"{found.name} has a new id, {made.id} (was {found.id})"]
    if running := _running(api, found.id):
        notes.append(
            f"its run {running} continues and is not counted: the next run may start in parallel"
        )
    return Resumed(made.id, tuple(notes))


def _copied(record: Mapping[str, Any], namespace: str | None, now: datetime) -> dict[str, Any]:
    """An enabled schedule with the content of `record`, without a start in the past."""
    trigger = {kind: dict(content) for kind, content in record.get("trigger", {}).items()}
    for content in trigger.values():
        end = content.get("end_time")
        if end is not None and datetime.fromisoformat(end) <= now:
            raise ClusterError(
                f"the schedule {record.get('display_name')} ended at {end}: delete it, and create "
                "another"
            )
        if "start_time" in content and datetime.fromisoformat(content["start_time"]) <= now:
            del content["start_time"]
    described = _IN_PLACE_OF.sub("", record.get("description", "")).strip()
    marker = f"(espalier: in place of {record['recurring_run_id']})"
    copied: dict[str, Any] = {key: record[key] for key in _COPIED if key in record}
    copied |= {"trigger": trigger, "mode": "ENABLE", "description": f"{described} {marker}".strip()}
    return copied if namespace is None else copied | {"namespace": namespace}


def _replace(api: KubeflowApi, paused_id: str, made: Schedule) -> None:
    deleting = api.recurring_runs.recurring_run_service_delete_recurring_run
    try:
        api.write("delete it", deleting, paused_id, propagation_policy=_KEEP_RUNS)
    except ClusterError as error:
        raise ClusterError(
            f"{made.name} is resumed as {made.id}, but the paused {paused_id} that it replaces "
            f"still exists ({error}). `espalier schedule resume {made.id}` deletes it"
        ) from error


def _running(api: KubeflowApi, schedule_id: str) -> str | None:
    """Id of an active run of the schedule; None if there is none."""
    listing = api.runs.run_service_list_runs
    runs = api.listed(
        "list runs", "runs", listing, namespace=api.config.namespace, sort_by="created_at desc"
    )
    for _, run in zip(range(_RUNS_ASKED), runs, strict=False):
        if run.get("recurring_run_id") == schedule_id and run.get("state") in ACTIVE_STATES:
            return str(run.get("run_id"))
    return None


def delete(api: KubeflowApi, which: str) -> Schedule:
    """Delete the schedule; its runs stay and continue.

    Raises:
        ClusterError: no such schedule; the server is unreachable or refuses.
    """
    found = _found(api, which, schedules(api))
    deleting = api.recurring_runs.recurring_run_service_delete_recurring_run
    purpose = f"delete the schedule {found.name}"
    api.write(purpose, deleting, found.id, propagation_policy=_KEEP_RUNS)
    return found


def _found(api: KubeflowApi, which: str, known: list[Schedule]) -> Schedule:
    replaced = {one.in_place_of for one in known}
    found = [one for one in known if one.id == which] or [
        one for one in known if one.name == which and one.id not in replaced
    ]
    if not found:
        there = ", ".join(one.name for one in known) or "none"
        raise ClusterError(f"{api.endpoint}: no schedule {which}; there are: {there}")
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise ClusterError(
            f"{api.endpoint}: several schedules are named {which}; give an id: {ids}"
        )
    return found[0]


def _time(option: str, text: str | None, timezone: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ClusterError(f"{option} {text}: {error}; write it as 2026-03-04T05:06:07Z") from error
    if time.tzinfo is None:
        if timezone is None:
            raise ClusterError(
                f"{option} {text}: it has no time zone. Add Z or an offset like +01:00, or give "
                "--timezone"
            )
        time = time.replace(tzinfo=zone(timezone))
    return time.astimezone(UTC)
