"""Runs that Kubeflow starts by the clock: made, listed, paused, resumed, deleted.

One at a time, and none for the time that a schedule was paused or Kubeflow was away: a retraining
run that starts late has the same data as one that starts in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from espalier.config import KubeflowConfig
from espalier.orchestration.cron import checked_cron
from espalier.orchestration.kubeflow_api import KubeflowApi
from espalier.orchestration.submitting import prepare
from espalier.records import ClusterError
from espalier.steps.profiles import named_profile

_PATH = "/recurringruns"


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

    def trigger(self) -> dict[str, Any]:
        """V2beta1Trigger.

        Raises:
            ClusterError: a cron expression or time that cannot be read, or an end before the start.
        """
        schedule = {"cron": checked_cron(self.cron)}
        start, end = _time("--start", self.start), _time("--end", self.end)
        if start is not None and end is not None and end <= start:
            raise ClusterError(f"--end {self.end} is not after --start {self.start}")
        if start is not None:
            schedule["start_time"] = start.isoformat()
        if end is not None:
            schedule["end_time"] = end.isoformat()
        return {"cron_schedule": schedule}


class Schedule(NamedTuple):
    """A schedule as it is listed."""

    id: str
    name: str
    status: str
    """ENABLED or DISABLED."""
    cron: str
    parameters: dict[str, Any]


def create(api: KubeflowApi, name: str, when: When, profile: str, overrides: Sequence[str]) -> str:
    """Make a schedule and return its id.

    Args:
        api: of the server.
        name: that it is paused, resumed and deleted by; not taken yet.
        when: its runs start.
        profile: name or path, see `named_profile`.
        overrides: `section.key=value` each.

    Raises:
        ProfileError: the profile, or one of the overrides, is refused.
        ClusterError: the name is taken, the times make no sense, the server is away or refuses.
    """
    trigger = when.trigger()
    kubeflow = named_profile(profile, overrides).kubernetes.kubeflow
    if any(found.name == name for found in schedules(api, kubeflow)):
        raise ClusterError(
            f"{api.endpoint}: there is a schedule {name} already. Delete it "
            f"(`espalier schedule delete {name}`), or choose another name"
        )
    body = prepare(api, profile, overrides).body(name) | {
        "trigger": trigger,
        "mode": "ENABLE",
        "max_concurrency": "1",
        "no_catchup": True,
    }
    if kubeflow.namespace:
        body["namespace"] = kubeflow.namespace
    return parsed_schedule(api.post(_PATH, body)).id


def schedules(api: KubeflowApi, kubeflow: KubeflowConfig) -> list[Schedule]:
    """Every schedule of the namespace, in the server's order.

    Raises:
        ClusterError: the server is away, or refuses.
    """
    listed = api.listed(_PATH, "recurringRuns", namespace=kubeflow.namespace)
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


def pause(api: KubeflowApi, kubeflow: KubeflowConfig, which: str) -> Schedule:
    """Start no more runs until `resume`; one that runs goes on.

    Raises:
        ClusterError: no such schedule, the server is away or refuses.
    """
    found = _found(api, kubeflow, which)
    api.post(f"{_PATH}/{found.id}:disable")
    return found


def resume(api: KubeflowApi, kubeflow: KubeflowConfig, which: str) -> Schedule:
    """Start runs again, from the next time on.

    Raises:
        ClusterError: no such schedule, the server is away or refuses.
    """
    found = _found(api, kubeflow, which)
    api.post(f"{_PATH}/{found.id}:enable")
    return found


def delete(api: KubeflowApi, kubeflow: KubeflowConfig, which: str) -> Schedule:
    """Delete the schedule; runs that it started stay.

    Raises:
        ClusterError: no such schedule, the server is away or refuses.
    """
    found = _found(api, kubeflow, which)
    api.delete(f"{_PATH}/{found.id}")
    return found


def _found(api: KubeflowApi, kubeflow: KubeflowConfig, which: str) -> Schedule:
    """The schedule with that id, or else that name."""
    known = schedules(api, kubeflow)
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
