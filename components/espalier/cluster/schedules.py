"""Recurring runs of Kubeflow: create, list, pause, resume, delete; their cron expressions.

One run at a time, and no catch-up for times when a schedule was paused or Kubeflow was down: a late
retraining run would read the same data as the next one.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NamedTuple

import kfp_server_api
from pydantic import BaseModel, Field, ValidationError

from espalier.cluster.kubeflow import Compile, KubeflowApi, run_fields
from espalier.records import ClusterError


class _Field(NamedTuple):
    name: str
    first: int
    last: int
    words: tuple[str, ...] = ()
    """Names of the values, starting with `first`."""


_FIELDS = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field(
        "month", 1, 12,
        ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
    ),
    _Field("day of the week", 0, 6, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")),
)  # fmt: skip
_ITEM = re.compile(r"(\*|\?|(\w+)(?:-(\w+))?)(?:/(\d+))?")


def checked_cron(text: str) -> str:
    """Check a cron expression of Kubeflow, six fields with seconds first; normalise its spaces.

    Raises:
        ClusterError: there are not six fields, or a value is invalid.
    """
    fields = text.split()
    if len(fields) == len(_FIELDS) - 1:
        raise ClusterError(
            f"--cron {text!r}: Kubeflow's cron has six fields, seconds first; write "
            f"'0 {' '.join(fields)}'"
        )
    if len(fields) != len(_FIELDS):
        raise ClusterError(
            f"--cron {text!r}: {len(fields)} fields and not six (second, minute, hour, day of the "
            "month, month, day of the week), such as '0 0 3 * * 1' for Mondays at three"
        )
    for field, given in zip(_FIELDS, fields, strict=True):
        for item in given.split(","):
            if not _is_readable(item, field):
                raise ClusterError(
                    f"--cron {text!r}: {item!r} is no {field.name} "
                    f"({field.first}-{field.last}, *, a-b, */n)"
                )
    return " ".join(fields)


def _is_readable(item: str, field: _Field) -> bool:
    match = _ITEM.fullmatch(item)
    if match is None:
        return False
    first, last, stride = match[2], match[3], match[4]
    if stride is not None and not 0 < int(stride) <= field.last:
        return False
    if first is None:
        return True
    low = _value(first, field)
    high = low if last is None else _value(last, field)
    return low is not None and high is not None and field.first <= low <= high <= field.last


def _value(text: str, field: _Field) -> int | None:
    if text.upper() in field.words:
        return field.first + field.words.index(text.upper())
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 3 else None


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
    status: str = ""
    trigger: _Trigger | None = None
    runtime_config: _Runtime | None = None


class When(NamedTuple):
    """Times at which runs start."""

    cron: str
    start: str | None = None
    """ISO 8601 with an offset; None is now."""
    end: str | None = None

    def trigger(self) -> kfp_server_api.V2beta1Trigger:
        """Kubeflow's trigger for these times.

        Raises:
            ClusterError: the cron expression or a time is invalid, or the end is before the start.
        """
        start, end = _time("--start", self.start), _time("--end", self.end)
        cron = checked_cron(self.cron)
        if start is not None and end is not None and end <= start:
            raise ClusterError(f"--end {self.end} is not after --start {self.start}")
        schedule = kfp_server_api.V2beta1CronSchedule(cron=cron, start_time=start, end_time=end)
        return kfp_server_api.V2beta1Trigger(cron_schedule=schedule)


class Schedule(NamedTuple):
    """A recurring run of Kubeflow."""

    id: str
    name: str
    status: str
    """ENABLED or DISABLED."""
    cron: str
    parameters: dict[str, Any]


def create(api: KubeflowApi, name: str, when: When, compile_to: Compile) -> str:
    """Create a schedule and return its id.

    Args:
        api: of the server.
        name: not used by another schedule.
        when: times of its runs.
        compile_to: writes the compiled pipeline.

    Raises:
        ProfileError: the profile, or one of its overrides, is refused.
        ClusterError: the name is taken, a time is invalid, the server is unreachable or refuses.
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
    """Start no more runs until `resume`; a running one continues.

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
