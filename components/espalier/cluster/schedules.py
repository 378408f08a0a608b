"""Recurring runs of Kubeflow: create, list, pause, resume, delete.

One run at a time. No run is started for times that lie before a schedule was made or resumed: a
late retraining run would read the same data as the next one. Kubeflow's own `no_catchup` does not
give that. Its controller (backend/src/crd/controller/scheduledworkflow/util, cron_schedule.go and
scheduled_workflow.go) then leaves out all missed times but the latest, counts from the last run or
from a start in the past, and starts that run at once. So a start in the past is not sent, and a
schedule is resumed as a new one.
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
"""In the description of a resumed schedule: the id of the paused one, which is deleted after it."""
_COPIED = (
    "display_name", "pipeline_version_reference", "pipeline_spec", "runtime_config",
    "service_account", "max_concurrency", "no_catchup", "experiment_id", "plugins_input",
)  # fmt: skip
"""Fields of V2beta1RecurringRun that a resumed schedule takes over. Not the namespace: a Kubeflow
for one user gives its own there and refuses it as input (resource_manager.go,
GetValidExperimentNamespacePair)."""
_KEEP_RUNS = "ORPHAN"
"""A schedule owns the workflows of its runs: without this its deletion would end one that goes on
(resource_manager.go, DeleteJob; recurring_run.proto, DeletePropagationPolicy)."""
_RUNS_ASKED = 200
"""How many of the newest runs are looked through for one of a schedule that goes on."""


class _Cron(BaseModel):
    cron: str = ""


class _Trigger(BaseModel):
    cron_schedule: _Cron | None = None


class _Runtime(BaseModel):
    parameters: dict[str, Any] = Field(default_factory=dict)


class _RecurringRun(BaseModel):
    """The fields of V2beta1RecurringRun that are read here."""

    recurring_run_id: str = Field(min_length=1)
    display_name: str = ""
    description: str = ""
    status: str = ""
    trigger: _Trigger | None = None
    runtime_config: _Runtime | None = None


class When(NamedTuple):
    """Times at which runs start, as a user gives them."""

    cron: str
    start: str | None = None
    """ISO 8601; None is now."""
    end: str | None = None
    timezone: str | None = None
    """In which `cron`, and times without an offset, are meant; None is Kubeflow's own zone."""


class Times(NamedTuple):
    """Times at which runs start, as Kubeflow keeps them."""

    trigger: kfp_server_api.V2beta1Trigger
    notes: tuple[str, ...] = ()
    """Where they differ from what was given."""


def times(when: When, controller_zone: str, now: datetime) -> Times:
    """Kubeflow's trigger for these times.

    A start that has passed is left out, as Kubeflow would start a run for it at once. Another one
    is sent a second early: the first run is at the first time *after* what is sent
    (cron_schedule.go), and a start at midnight means that midnight too.

    Args:
        when: as the user gives them.
        controller_zone: `kubernetes.kubeflow.timezone`.
        now: the present.

    Raises:
        ClusterError: the expression or a time is invalid, the end is before the start or has
            passed, or the expression cannot be written in the controller's zone.
    """
    start = _time("--start", when.start, when.timezone)
    end = _time("--end", when.end, when.timezone)
    cron = checked_cron(when.cron)
    if start is not None and end is not None and end <= start:
        raise ClusterError(f"--end {when.end} is not after --start {when.start}")
    if end is not None and end <= now:
        raise ClusterError(f"--end {when.end} has passed: no run would be started")
    notes: list[str] = []
    if start is not None and start <= now:
        notes.append(
            f"--start {when.start} has passed: the first run is at the next time of the cron "
            "expression, and none for the times before"
        )
        start = None
    if when.timezone is not None:
        meant, cron = cron, cron_in(cron, when.timezone, controller_zone, start or now, end)
        if cron != meant:
            notes.append(
                f"Kubeflow keeps and lists {meant!r} of {when.timezone} as {cron!r} of "
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
    """Id of the paused schedule that it resumes."""


class Resumed(NamedTuple):
    """A schedule that starts runs again."""

    id: str
    notes: tuple[str, ...] = ()


def create(api: KubeflowApi, name: str, trigger: Times, compile_to: Compile) -> str:
    """Create a schedule and return its id.

    Args:
        api: of the server.
        name: not used by another schedule.
        trigger: times of its runs.
        compile_to: writes the compiled pipeline.

    Raises:
        ProfileError: the profile, or one of its overrides, is refused.
        ClusterError: the name is taken, the server is unreachable or refuses.
    """
    if any(found.name == name for found in schedules(api)):
        raise ClusterError(
            f"{api.endpoint}: there is a schedule {name} already. Delete it "
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
    """Every schedule of the namespace, in the server's order.

    Raises:
        ClusterError: the server is unreachable or refuses.
    """
    listing = api.recurring_runs.recurring_run_service_list_recurring_runs
    listed = api.listed("list schedules", "recurringRuns", listing, namespace=api.config.namespace)
    return [parsed_schedule(found) for found in listed]


def parsed_schedule(found: object) -> Schedule:
    """Parse an entry of the server's listing.

    Raises:
        ClusterError: it is no V2beta1RecurringRun.
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
    """Start no more runs until `resume`; a running one continues.

    Raises:
        ClusterError: no such schedule, the server is away or refuses.
    """
    found = _found(api, which, schedules(api))
    disabling = api.recurring_runs.recurring_run_service_disable_recurring_run
    api.write(f"pause the schedule {found.name}", disabling, found.id)
    return found


def resume(api: KubeflowApi, which: str, now: datetime) -> Resumed:
    """Start runs again, from the next time on: the paused schedule is replaced by an equal new one.

    Enabling it instead would start a run for the latest time that it missed. The new one is made
    first, so at every moment at most one of the two is enabled, and nothing is lost if this is
    interrupted; the same command then deletes what is left of the paused one. A schedule that
    catches up (made elsewhere) is enabled: it is meant to run what it missed.

    Args:
        api: of the server.
        which: name or id.
        now: the present.

    Raises:
        ClusterError: no such schedule, it has ended, the server is away or refuses.
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
        note = f"{found.name} catches up: Kubeflow starts a run for every time that it missed"
        return Resumed(found.id, (note,))
    creating = api.recurring_runs.recurring_run_service_create_recurring_run
    anew = _copied(record, api.config.namespace, now)
    made = parsed_schedule(api.write(f"resume the schedule {found.name}", creating, anew))
    _replace(api, found.id, made)
    notes = [f"{found.name} has a new id, {made.id} (was {found.id})"]
    if running := _running(api, found.id):
        notes.append(
            f"its run {running} goes on and is not counted: the next one may start beside it"
        )
    return Resumed(made.id, tuple(notes))


def _copied(record: Mapping[str, Any], namespace: str | None, now: datetime) -> dict[str, Any]:
    """An enabled schedule with the content of `record`, without a start that has passed."""
    trigger = {kind: dict(content) for kind, content in record.get("trigger", {}).items()}
    for content in trigger.values():
        end = content.get("end_time")
        if end is not None and datetime.fromisoformat(end) <= now:
            raise ClusterError(
                f"the schedule {record.get('display_name')} ended at {end}: delete it, and make "
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
            f"{made.name} is resumed as {made.id}, but the paused {paused_id} that it replaces is "
            f"still there ({error}). `espalier schedule resume {made.id}` deletes it"
        ) from error


def _running(api: KubeflowApi, schedule_id: str) -> str | None:
    """Id of a run of the schedule that has not ended."""
    listing = api.runs.run_service_list_runs
    runs = api.listed(
        "list runs", "runs", listing, namespace=api.config.namespace, sort_by="created_at desc"
    )
    for _, run in zip(range(_RUNS_ASKED), runs, strict=False):
        if run.get("recurring_run_id") == schedule_id and run.get("state") in ACTIVE_STATES:
            return str(run.get("run_id"))
    return None


def delete(api: KubeflowApi, which: str) -> Schedule:
    """Delete the schedule; runs that it started stay, and go on.

    Raises:
        ClusterError: no such schedule, the server is away or refuses.
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
                f"{option} {text}: in which time zone? Add Z or an offset such as +01:00, or give "
                "--timezone"
            )
        time = time.replace(tzinfo=zone(timezone))
    return time.astimezone(UTC)
