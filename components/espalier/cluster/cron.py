"""Kubeflow's cron expressions: six fields, seconds first."""

from __future__ import annotations

import re
from typing import NamedTuple

from espalier.records import ClusterError


class _Field(NamedTuple):
    name: str
    first: int
    last: int
    words: tuple[str, ...] = ()
    """Names of the values from `first` on."""


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
    """`text` with single spaces, where Kubeflow can read it.

    Raises:
        ClusterError: not six fields, or a value that its field does not have.
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
