"""Two to four sides compared: rates, actions, and the same tasks side by side."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from espalier.wire.requests import Refusal
from espalier_ui.attempts import Filter, source_filter
from espalier_ui.parameters import AttemptPlace, Page
from espalier_ui.runs import Run, RunCatalog
from espalier_ui.sources import POLICIES, SOURCES

SORTS = ("position", "worse", "better", "differs")
_SIDE = re.compile(rf"([a-z0-9._-]+):({'|'.join(SOURCES)})(?::(\d{{1,9}})(?:-(\d{{1,9}}))?)?")
_IS_GREEDY = "coalesce(json_extract(shown, '$.sample'), 0) = ?"
_NORMAL_95 = 1.959964
"""Quantile of the normal distribution for an interval of 95%."""


class Side(NamedTuple):
    """One side of a comparison."""

    name: str
    run: Run
    wanted: Filter


class _Tried(NamedTuple):
    """One side's attempts at a task."""

    right: float
    reward: float
    attempts: int
    first: str
    question: str


def side_of(text: str, catalog: RunCatalog) -> Side:
    """Return the side that RUN:SOURCE or RUN:train:FROM-TO names.

    Of an evaluation these are the greedy answers, of which its score is made, not the sampled ones.

    Raises:
        Refusal: it is none, or there is no such run.
    """
    match = _SIDE.fullmatch(text)
    if match is None:
        raise Refusal(
            400,
            "side: give RUN:SOURCE, RUN:train:STEP or RUN:train:FROM-TO",
            param="side",
            code="bad_parameter",
        )
    wanted = source_filter(match[2])
    if match[2] in POLICIES:
        wanted = wanted.also(_IS_GREEDY, 0)
    if match[3]:
        wanted = wanted.also("step BETWEEN ? AND ?", int(match[3]), int(match[4] or match[3]))
    return Side(text, catalog.get(match[1]), wanted)


def compared(sides: Sequence[Side], sort: str, page: Page) -> dict[str, Any]:
    """Return the answer of `GET /api/compare`."""
    tried: list[dict[str, _Tried]] = []
    described: list[dict[str, Any]] = []
    for side in sides:
        side.run.index.follow()
        with side.run.index.reading() as connection:
            tried.append(_by_task(connection, side.wanted))
            described.append({"side": side.name} | _described(connection, side.wanted, tried[-1]))
    tasks = list(dict.fromkeys(task for one in tried for task in one))
    tasks = _sorted(tasks, tried, sort)
    return {
        "sides": described,
        "differences": [
            {"side": number} | _difference(tried[0], tried[number])
            for number in range(1, len(tried))
        ],
        "total": len(tasks),
        "offset": page.offset,
        "pairs": [
            {
                "task": task,
                "question": next((one[task].question for one in tried if task in one), None),
                "sides": [_pair_side(one.get(task)) for one in tried],
            }
            for task in tasks[page.offset : page.offset + page.limit]
        ],
    }


def _pair_side(tried: _Tried | None) -> dict[str, Any] | None:
    if tried is None:
        return None
    return {name: value for name, value in tried._asdict().items() if name != "question"}


def _by_task(connection: sqlite3.Connection, wanted: Filter) -> dict[str, _Tried]:
    rows = connection.execute(
        "SELECT task, avg(is_right) AS passed, avg(reward) AS mean, count(*) AS count, "
        "min(id) AS first, source, number, offset, json_extract(shown, '$.question') AS question "
        f"FROM attempts WHERE {wanted.condition} GROUP BY task ORDER BY first",
        wanted.values,
    )
    # with min(), SQLite takes the other columns from the row that has the smallest
    return {
        row["task"]: _Tried(
            row["passed"],
            row["mean"],
            row["count"],
            str(AttemptPlace(SOURCES[row["source"]], row["number"], row["offset"])),
            row["question"] or "",
        )
        for row in rows
    }


def _described(
    connection: sqlite3.Connection, wanted: Filter, tried: dict[str, _Tried]
) -> dict[str, Any]:
    whole = connection.execute(
        "SELECT count(*) AS count, avg(is_right) AS passed, avg(reward) AS mean, "
        "avg(calls) AS calls, avg(sampled_tokens) AS tokens, "
        "avg(finish = 'answered') AS answered, avg(failure = 'unread_call') AS unread "
        f"FROM attempts WHERE {wanted.condition}",
        wanted.values,
    ).fetchone()
    count = whole["count"]
    finish = connection.execute(
        f"SELECT finish, count(*) AS count FROM attempts WHERE {wanted.condition} "
        "GROUP BY finish ORDER BY count DESC",
        wanted.values,
    ).fetchall()
    tools = connection.execute(
        "SELECT tool, count(*) AS attempts, sum(calls) AS calls FROM uses WHERE attempt IN "
        f"(SELECT id FROM attempts WHERE {wanted.condition}) GROUP BY tool ORDER BY calls DESC",
        wanted.values,
    ).fetchall()
    actions = [
        {"action": row["tool"], "attempts": row["attempts"] / count,
         "per_attempt": row["calls"] / count}
        for row in tools
    ]  # fmt: skip
    actions += [
        {"action": name, "attempts": whole[column], "per_attempt": whole[column]}
        for name, column in (("answer", "answered"), ("unread", "unread"))
        if whole[column]
    ]
    return {
        "attempts": count,
        "tasks": len(tried),
        "right": whole["passed"],
        "reward": whole["mean"],
        "calls": whole["calls"],
        "sampled_tokens": whole["tokens"],
        "actions": actions,
        "finish": {row["finish"]: row["count"] / count for row in finish},
    }


def _difference(before: dict[str, _Tried], after: dict[str, _Tried]) -> dict[str, Any]:
    """Return the mean difference of the right share over the tasks of both, with its interval.

    The interval is that of a mean of paired differences by the normal distribution.
    """
    both = [task for task in before if task in after]
    gaps = [after[task].right - before[task].right for task in both]
    counts = {
        "tasks": len(both),
        "better": sum(gap > 0 for gap in gaps),
        "worse": sum(gap < 0 for gap in gaps),
        "same": sum(gap == 0 for gap in gaps),
    }
    if not gaps:
        return counts | {"right": None, "ci95": None}
    mean = fmean(gaps)
    error = stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf
    reach = _NORMAL_95 * error
    ends = [max(-1.0, mean - reach), min(1.0, mean + reach)]
    return counts | {"right": mean, "ci95": ends}


def _sorted(tasks: list[str], tried: Sequence[dict[str, _Tried]], sort: str) -> list[str]:
    first, second = tried[0], tried[1]

    def gap(task: str) -> float | None:
        if task not in first or task not in second:
            return None
        return second[task].right - first[task].right

    if sort == "position":
        return tasks
    sign = {"worse": 1.0, "better": -1.0}.get(sort)
    gaps = {task: gap(task) for task in tasks}

    def key(task: str) -> float:
        found = gaps[task]
        if found is None:
            return math.inf  # tasks of one side alone come last
        return -abs(found) if sign is None else sign * found

    return sorted(tasks, key=key)
