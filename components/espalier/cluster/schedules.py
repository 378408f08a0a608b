"""Runs that Kubeflow starts by the clock: made, listed, paused, resumed, deleted.

One at a time, and none for the time that a schedule was paused or Kubeflow was away: a retraining
run that starts late has the same data as one that starts in time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import kfp_server_api
from pydantic import BaseModel, Field, ValidationError

from espalier.cluster.cron import checked_cron
from espalier.cluster.kubeflow import Compile, KubeflowApi, run_fields
from espalier.records import ClusterError


class _Cron(BaseModel):
    cron: str = ""


class _Trigger(BaseModel):
    cron_schedule: _Cron | None = None


class _Runtime(BaseModel):
    parameters: dict[str, Any] = Field(default_factory=dict)


class _RecurringRun(BaseModel):
    """V2beta1RecurringRun, as far as it is read here."""

    recurring_run_id: str = Field(min_length=1)
    display_name: str = ""
    status: str = ""
    trigger: _Trigger | None = None
    runtime_config: _Runtime | None = None


class When(NamedTuple):
    """When runs start."""

    cron: str
    start: str | None = None
    """ISO 8601 with an offset; None is now."""
    end: str | None = None

    def trigger(self) -> kfp_server_api.V2beta1Trigger:
        """The start as Kubeflow reads it.

        Raises:
            ClusterError: a cron expression or time that cannot be read, or an end before the start.
        """
        start, end = _time("--start", self.start), _time("--end", self.end)
        cron = checked_cron(self.cron)
        if start is not None and end is not None and end <= start:
            raise ClusterError(f"--end {self.end} is not after --start {self.start}")
        schedule = kfp_server_api.V2beta1CronSchedule(cron=cron, start_time=start, end_time=end)
        return kfp_server_api.V2beta1Trigger(cron_schedule=schedule)


class Schedule(NamedTuple):
    """A schedule as it is listed."""

    id: str
    name: str
    status: str
    """ENABLED or DISABLED."""
    cron: str
    parameters: dict[str, Any]


def create(api: KubeflowApi, name: str, when: When, compile_to: Compile) -> str:
    """Make a schedule and return its id.

    Args:
        api: of the server.
        name: that it is paused, resumed and deleted by; not taken yet.
        when: its runs start.
        compile_to: makes the pipeline.

    Raises:
        ProfileError: the profile, or one of its overrides, is refused.
        ClusterError: the name is taken, the times make no sense, the server is away or refuses.
    """
    trigger = when.trigger()
    if any(found.name == name for found in schedules(api)):
        raise ClusterError(
            f"{api.endpoint}: there is a schedule {name} already. Delete it "
            f"(`espalier schedule delete {name}`), or choose another name"
        )
    recurring_run = kfp_server_api.V2beta1RecurringRun(
        display_name=name,
        trigger=trigger,
        mode="ENABLE",
        max_concurrency="1",
        no_catchup=True,
        namespace=api.config.namespace,
        **run_fields(api, compile_to),
    )
    creating = api.recurring_runs.recurring_run_service_create_recurring_run
    return parsed_schedule(api.write(f"create the schedule {name}", creating, recurring_run)).id


def schedules(api: KubeflowApi) -> list[Schedule]:
    """Every schedule of the namespace, in the server's order.

    Raises:
        ClusterError: the server is away, or refuses.
    """
    listing = api.recurring_runs.recurring_run_service_list_recurring_runs
    listed = api.listed("list schedules", "recurringRuns", listing, namespace=api.config.namespace)
    return [parsed_schedule(found) for found in listed]


def parsed_schedule(found: object) -> Schedule:
    """One entry of the server's listing.

    Raises:
        ClusterError: it is no V2beta1RecurringRun.
    """
    try:
        run = _RecurringRun.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ClusterError(
            f"the server lists a schedule that cannot be read ({where}: {first['msg']}): does it "
            "speak v2beta1 of Kubeflow Pipelines?"
        ) from error
    trigger = run.trigger.cron_schedule if run.trigger else None
    return Schedule(
        id=run.recurring_run_id,
        name=run.display_name,
        status=run.status,
        cron=trigger.cron if trigger else "",
        parameters=run.runtime_config.parameters if run.runtime_config else {},
    )


def pause(api: KubeflowApi, which: str) -> Schedule:
    """Start no more runs until `resume`; one that runs goes on.

    Raises:
        ClusterError: no such schedule, the server is away or refuses.
    """
    found = _found(api, which)
    disabling = api.recurring_runs.recurring_run_service_disable_recurring_run
    api.write(f"pause the schedule {found.name}", disabling, found.id)
    return found


def resume(api: KubeflowApi, which: str) -> Schedule:
    """Start runs again, from the next time on.

    Raises:
        ClusterError: no such schedule, the server is away or refuses.
    """
    found = _found(api, which)
    enabling = api.recurring_runs.recurring_run_service_enable_recurring_run
    api.write(f"resume the schedule {found.name}", enabling, found.id)
    return found


def delete(api: KubeflowApi, which: str) -> Schedule:
    """Delete the schedule; runs that it started stay.

    Raises:
        ClusterError: no such schedule, the server is away or refuses.
    """
    found = _found(api, which)
    deleting = api.recurring_runs.recurring_run_service_delete_recurring_run
    api.write(f"delete the schedule {found.name}", deleting, found.id)
    return found


def _found(api: KubeflowApi, which: str) -> Schedule:
    """The schedule with that id, or else that name."""
    known = schedules(api)
    found = [one for one in known if one.id == which] or [one for one in known if one.name == which]
    if not found:
        there = ", ".join(one.name for one in known) or "none"
        raise ClusterError(f"{api.endpoint}: no schedule {which}; there are: {there}")
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise ClusterError(
            f"{api.endpoint}: several schedules are named {which}; give an id: {ids}"
        )
    return found[0]


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ClusterError(f"{option} {text}: {error}; write it as 2026-03-04T05:06:07Z") from error
    if time.tzinfo is None:
        raise ClusterError(
            f"{option} {text}: in which time zone? Add Z or an offset such as +01:00"
        )
    return time
