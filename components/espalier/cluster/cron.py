"""Cron expressions of Kubeflow: checks them, and converts them between time zones.

Kubeflow parses them with robfig/cron 1.2.0 (`go.mod`): six fields, seconds first, no time zone in
the text. All schedules are read in one zone, CRON_SCHEDULE_TIMEZONE of the scheduled workflow
controller (`backend/src/crd/controller/scheduledworkflow/util/const.go`), which its API does not
return. cronsim parses the same six fields, with "*" for "?".
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from espalier.records import ClusterError

_EXAMPLE = (
    "six fields (second, minute, hour, day of the month, month, day of the week), such as "
    "'0 0 3 * * 1' for Mondays at three"
)
_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
"""Start of the search for a first time; `_YEARS_SEARCHED` from here include two leap years."""
_YEARS_SEARCHED = 5
"""Years after which robfig/cron gives up the search for a next time (spec.go, Next)."""
_MINUTES_OF_DAY = 24 * 60
_YEARS_AHEAD = 10
"""Years for which a schedule without an end is checked for daylight saving time."""


def checked_cron(text: str) -> str:
    """Check a cron expression of Kubeflow (six fields, seconds first) and normalize its spaces.

    Raises:
        ClusterError: there are not six fields, a value is invalid, or no day fits.
    """
    fields = text.split()
    if "TZ=" in text.upper():
        raise ClusterError(
            f"--cron {text!r}: Kubeflow allows no time zone in a cron expression; give it as "
            "--timezone"
        )
    if len(fields) == 5:
        raise ClusterError(
            f"--cron {text!r}: Kubeflow's cron has six fields, seconds first; write "
            f"'0 {' '.join(fields)}'"
        )
    cron = " ".join(fields)
    try:
        times = _parsed(cron)
    except CronSimError as error:
        raise ClusterError(f"--cron {text!r}: {error}; Kubeflow reads {_EXAMPLE}") from error
    # where robfig/cron finds no time, the controller's loop for schedules without catch-up
    # (util/cron_schedule.go) never ends, and blocks all schedules
    first = next(times, None)
    if first is None or first.year >= _EPOCH.year + _YEARS_SEARCHED:
        raise ClusterError(f"--cron {text!r}: no year has such a day")
    return cron


def zone(name: str) -> tzinfo:
    """The time zone with the name.

    Raises:
        ClusterError: this machine's database does not have it.
    """
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ClusterError(
            f"--timezone {name}: unknown; write it like Europe/Paris, and check that the machine "
            "has a time zone database (package tzdata)"
        ) from error


def cron_in(
    cron: str, zone_name: str, controller_zone: str, start: datetime, end: datetime | None
) -> str:
    """Convert `cron` from the zone of its author to the zone in which Kubeflow reads it.

    Args:
        cron: result of `checked_cron`.
        zone_name: zone of its author.
        controller_zone: zone in which Kubeflow reads it.
        start: start of the schedule.
        end: end of the schedule, or None.

    Raises:
        ClusterError: no single expression fits, because the offset between the zones changes before
            the end (daylight saving time), or because days of the month would shift.
    """
    meant, read = zone(zone_name), zone(controller_zone)
    where_to_set = (
        f"Have Kubeflow read {zone_name} (cronScheduleTimezone in its config map "
        "pipeline-install-config, then restart ml-pipeline-scheduledworkflow) and say so in "
        "kubernetes.kubeflow.timezone"
    )
    distance = _distance(meant, read, start)
    until = end or start + timedelta(days=365 * _YEARS_AHEAD)
    days = range((until - start).days + 1)
    for moment in (*(start + timedelta(days=day) for day in days), until):
        if _distance(meant, read, moment) != distance:
            raise ClusterError(
                f"--timezone {zone_name}: this Kubeflow reads every schedule in {controller_zone}, "
                f"and the offset between the two changes on {moment:%Y-%m-%d} (daylight saving "
                f"time). {where_to_set}; or give --cron in {controller_zone}; or an --end before "
                "that day"
            )
    moved = _moved(cron, -round(distance.total_seconds() / 60))
    if moved is None:
        raise ClusterError(
            f"--timezone {zone_name}: {cron!r} cannot be written in {controller_zone}, in which "
            f"this Kubeflow reads every schedule: its days would shift. {where_to_set}; or give "
            f"--cron in {controller_zone}"
        )
    return moved


def _distance(meant: tzinfo, read: tzinfo, moment: datetime) -> timedelta:
    offsets = [moment.astimezone(one).utcoffset() or timedelta() for one in (meant, read)]
    return offsets[0] - offsets[1]


def _moved(cron: str, minutes: int) -> str | None:
    """The expression for times `minutes` later; None if none exists."""
    if minutes == 0:
        return cron
    fields, read = cron.split(), _parsed(cron)
    moved = [
        divmod(hour * 60 + minute + minutes, _MINUTES_OF_DAY)
        for hour in read.hours
        for minute in read.minutes
    ]
    days_later = {days for days, _ in moved}
    hours = {of_day // 60 for _, of_day in moved}
    minutes_of_hour = {of_day % 60 for _, of_day in moved}
    if len(moved) != len(hours) * len(minutes_of_hour):
        return None  # as '0 15,45 3 * * *' moved by half an hour: 3:45 and 4:15
    fields[1] = "*" if len(minutes_of_hour) == 60 else _listed(minutes_of_hour)
    fields[2] = "*" if len(hours) == 24 else _listed(hours)
    has_every_date = fields[3] in "*?" and fields[4] in "*?"
    if days_later == {0} or (has_every_date and fields[5] in "*?"):
        return " ".join(fields)
    if not has_every_date or len(days_later) != 1:
        return None
    (days,) = days_later
    weekdays = {weekday for weekday in read.weekdays if isinstance(weekday, int)}
    fields[5] = _listed({(weekday + days) % 7 for weekday in weekdays})
    return " ".join(fields)


def _listed(values: set[int]) -> str:
    return ",".join(map(str, sorted(values)))


def _parsed(cron: str) -> CronSim:
    """The times of an expression, from `_EPOCH` on.

    Raises:
        CronSimError: a value is invalid, or only cronsim accepts it.
    """
    times = CronSim(cron.replace("?", "*"), _EPOCH)
    if not {*times.days, *times.weekdays} <= set(range(32)):
        raise CronSimError("Kubeflow allows no L, LW or # among days")
    if 7 in times.weekdays and "*" not in times.parts[5]:
        raise CronSimError("Bad day-of-week: 7, given or reached by a step; Sunday is 0")
    return times
