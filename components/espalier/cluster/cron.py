"""Cron expressions of Kubeflow: checked, and moved from one time zone to another.

Kubeflow reads them with robfig/cron 1.2.0 (`go.mod`): six fields, seconds first, no time zone in
the text. Every schedule is read in one zone, CRON_SCHEDULE_TIMEZONE of the scheduled workflow
controller (`backend/src/crd/controller/scheduledworkflow/util/const.go`), which its API does not
tell.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

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
_ZONE_PREFIX = re.compile(r"(CRON_)?TZ=", re.IGNORECASE)
_EVERY_DAY = frozenset(range(1, 32))
_EVERY_MONTH = frozenset(range(1, 13))
_MINUTES_OF_DAY = 24 * 60
_YEARS_AHEAD = 10
"""How far ahead a schedule without an end is asked for changes of the clock."""


class _Cron(NamedTuple):
    """The values of each field."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]


def checked_cron(text: str) -> str:
    """Check a cron expression of Kubeflow, six fields with seconds first; normalise its spaces.

    Raises:
        ClusterError: there are not six fields, a value is invalid, or no day fits.
    """
    fields = text.split()
    if _ZONE_PREFIX.match(text.lstrip()):
        raise ClusterError(
            f"--cron {text!r}: Kubeflow knows no time zone in a cron expression; give it as "
            "--timezone"
        )
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
            if not _values_of(item, field):
                raise ClusterError(
                    f"--cron {text!r}: {item!r} is no {field.name} "
                    f"({field.first}-{field.last}, *, a-b, */n)"
                )
    # robfig/cron gives up after five years without a day, and the controller's loop for schedules
    # without catch-up (util/cron_schedule.go) then never ends: it would block every schedule there
    if not any(_days(" ".join(fields))):
        raise ClusterError(f"--cron {text!r}: no year has such a day")
    return " ".join(fields)


def zone(name: str) -> tzinfo:
    """The time zone of that name.

    Raises:
        ClusterError: it is not known here.
    """
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ClusterError(
            f"--timezone {name}: not known here; write it as Europe/Paris, and see that the "
            "machine has a time zone database (package tzdata)"
        ) from error


def cron_in(
    cron: str, zone_name: str, controller_zone: str, start: datetime, end: datetime | None
) -> str:
    """`cron`, meant in one zone, as it has to be written for a controller that reads another one.

    Args:
        cron: of `checked_cron`.
        zone_name: in which it is meant.
        controller_zone: in which Kubeflow reads it.
        start: of the schedule.
        end: of the schedule, or None.

    Raises:
        ClusterError: no one expression fits, because the zones' distance changes while the schedule
            lives (daylight saving time), or because days of the month would move.
    """
    meant, read = zone(zone_name), zone(controller_zone)
    where_to_set = (
        f"Have Kubeflow read {zone_name} (cronScheduleTimezone in its config map "
        "pipeline-install-config, then restart ml-pipeline-scheduledworkflow) and say so in "
        "kubernetes.kubeflow.timezone"
    )
    ahead = start + timedelta(days=365 * _YEARS_AHEAD)
    distance = _distance(meant, read, start)
    for moment in _each_day(start, end or ahead):
        if _distance(meant, read, moment) != distance:
            raise ClusterError(
                f"--timezone {zone_name}: this Kubeflow reads every schedule in {controller_zone}, "
                f"and the two differ by another time from {moment:%Y-%m-%d} on (daylight saving "
                f"time). {where_to_set}; or give --cron in {controller_zone}; or an --end before "
                "that day"
            )
    moved = _moved(cron, -round(distance.total_seconds() / 60))
    if moved is None:
        raise ClusterError(
            f"--timezone {zone_name}: {cron!r} cannot be written in {controller_zone}, in which "
            f"this Kubeflow reads every schedule: its days would move. {where_to_set}; or give "
            f"--cron in {controller_zone}"
        )
    return moved


def _distance(meant: tzinfo, read: tzinfo, moment: datetime) -> timedelta:
    offsets = [moment.astimezone(one).utcoffset() or timedelta() for one in (meant, read)]
    return offsets[0] - offsets[1]


def _each_day(start: datetime, end: datetime) -> Iterator[datetime]:
    moment = start
    while moment < end:
        yield moment
        moment += timedelta(days=1)
    yield end


def _moved(cron: str, minutes: int) -> str | None:
    """The expression `minutes` later, or None if there is none."""
    if minutes == 0:
        return cron
    fields, values = cron.split(), _values(cron)
    moved = {
        divmod(hour * 60 + minute + minutes, _MINUTES_OF_DAY)
        for hour in values.hours
        for minute in values.minutes
    }
    hours = {of_day // 60 for _, of_day in moved}
    minutes_of_hour = {of_day % 60 for _, of_day in moved}
    if len({of_day for _, of_day in moved}) != len(hours) * len(minutes_of_hour):
        return None  # such as 3:45 and 4:15 of '0 15,45 3 * * *' in a zone of half an hour
    fields[1] = _text(minutes_of_hour, _FIELDS[1])
    fields[2] = _text(hours, _FIELDS[2])
    every_date = values.days == _EVERY_DAY and values.months == _EVERY_MONTH
    if every_date and len(values.weekdays) == len(_FIELDS[5].words):
        return " ".join(fields)
    days_later = {days for days, _ in moved}
    if days_later == {0}:
        return " ".join(fields)
    if not every_date or len(days_later) != 1:
        return None
    (days,) = days_later
    fields[5] = _text({(weekday + days) % 7 for weekday in values.weekdays}, _FIELDS[5])
    return " ".join(fields)


def _text(values: set[int], field: _Field) -> str:
    if len(values) == field.last - field.first + 1:
        return "*"
    return ",".join(str(value) for value in sorted(values))


def _values(cron: str) -> _Cron:
    return _Cron(
        *(
            frozenset(value for item in given.split(",") for value in _values_of(item, field))
            for field, given in zip(_FIELDS, cron.split(), strict=True)
        )
    )


def _values_of(item: str, field: _Field) -> range:
    """What one item of a field's list stands for; nothing if it is not valid."""
    match = _ITEM.fullmatch(item)
    if match is None:
        return range(0)
    first, last, stride = match[2], match[3], match[4]
    step = 1 if stride is None else int(stride)
    if not 0 < step <= field.last:
        return range(0)
    if first is None:
        return range(field.first, field.last + 1, step)
    low = _value(first, field)
    # a single number with a step goes on to the field's end (robfig/cron, parser.go, getRange)
    high = _value(last, field) if last is not None else field.last if stride is not None else low
    if low is None or high is None or not field.first <= low <= high <= field.last:
        return range(0)
    return range(low, high + 1, step)


def _value(text: str, field: _Field) -> int | None:
    if text.upper() in field.words:
        return field.first + field.words.index(text.upper())
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 3 else None


def _days(cron: str) -> Iterator[date]:
    """The days of five years, one of them a leap year, on which the expression has times."""
    values, fields = _values(cron), cron.split()
    # robfig/cron, spec.go dayMatches: both fields have to fit if one has a star, else one of them
    both = any(item[0] in "*?" for given in (fields[3], fields[5]) for item in given.split(","))
    for year in range(2024, 2029):
        for month in sorted(values.months):
            for number in range(1, calendar.monthrange(year, month)[1] + 1):
                day = date(year, month, number)
                fits = (number in values.days, day.isoweekday() % 7 in values.weekdays)
                if all(fits) if both else any(fits):
                    yield day
