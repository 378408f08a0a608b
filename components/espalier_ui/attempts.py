"""Lists of attempts: filtered and sorted pages, groups, histograms, and why attempts failed."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from espalier.wire.requests import Refusal
from espalier_ui.parameters import AttemptPlace, Page, Parameters
from espalier_ui.run_index import CAUSES, RunIndex
from espalier_ui.sources import SOURCES, TRAIN

_SORTS = {
    "position": "number, offset",
    "reward": "reward, number, offset",
    "tokens": "tokens, number, offset",
    "calls": "calls, number, offset",
    "logprob": "logprob, number, offset",
}
SORTS = (*_SORTS, *(f"-{name}" for name in _SORTS))
_GROUP_SORTS = {
    "position": "first",
    "spread": "spread, first",
    "-spread": "spread DESC, first",
    "pass": "passed, first",
    "-pass": "passed DESC, first",
}
GROUP_SORTS = tuple(_GROUP_SORTS)
GROUP_KINDS = {
    "mixed": "passes > 0 AND passes < size",
    "all_right": "passes = size",
    "all_wrong": "passes = 0",
}
MEASURES = {
    "reward": "reward",
    "tokens": "tokens",
    "sampled_tokens": "sampled_tokens",
    "calls": "calls",
    "turns": "turns",
    "logprob": "logprob",
}
_LARGEST_GROUP = 200
_EXAMPLES = 3


class Filter(NamedTuple):
    """A condition of SQL on the table `attempts`, with its values."""

    condition: str
    values: tuple[Any, ...]

    def also(self, condition: str, *values: Any) -> Filter:  # noqa: ANN401 (as SQLite takes them)
        """Return this filter with one more condition."""
        return Filter(f"{self.condition} AND {condition}", (*self.values, *values))


def source_filter(source: str) -> Filter:
    """Return the filter of a source's attempts."""
    return Filter("source = ?", (SOURCES.index(source),))


def asked_filter(asked: Parameters, source: str | None) -> Filter:
    """Return the filter of a request's parameters.

    Raises:
        Refusal: a parameter is wrong.
    """
    right = asked.flag("right")
    given = [
        ("step = ?", asked.count("step")),
        ("step >= ?", asked.count("from")),
        ("step <= ?", asked.count("to")),
        ("task = ?", asked.text("task")),
        ("finish = ?", asked.text("finish")),
        ("is_right = ?", None if right is None else int(right)),
        ("failure = ?", asked.choice("failure", tuple(CAUSES))),
        ("reward >= ?", asked.number("min_reward")),
        ("reward <= ?", asked.number("max_reward")),
        ("id IN (SELECT attempt FROM uses WHERE tool = ?)", asked.text("tool")),
    ]
    found = Filter("1", ()) if source is None else source_filter(source)
    for condition, value in given:
        if value is not None:
            found = found.also(condition, value)
    group = asked.text("group")
    return found if group is None else found.also("step = ? AND task = ?", *group_place(group))


def group_place(group: str) -> tuple[int, str]:
    """Return step and task of a group's id.

    Raises:
        Refusal: it is no id.
    """
    step, slash, task = group.partition("/")
    if not slash or not step.isdecimal() or len(step) > 12 or not task:
        raise Refusal(400, "group: give STEP/TASK", param="group", code="bad_parameter")
    return int(step), task


_NAMED = re.compile(r"(\d{1,9})/(.+)/(\d{1,6})", re.DOTALL)
_MOST_NAMED = 20


def named(index: RunIndex, names: Sequence[str]) -> dict[str, str]:
    """Return the ids of training attempts named by STEP/TASK/NUMBER, each with a short title.

    A name of another form is an id already, and is its own title. A name without an attempt, of
    steps that a resumed run wrote again, is left out.
    """
    found: dict[str, str] = {}
    with index.reading() as connection:
        for name in names[:_MOST_NAMED]:
            match = _NAMED.fullmatch(name)
            if match is None:
                found[name] = name
                continue
            row = connection.execute(
                "SELECT number, offset, is_right, failure FROM attempts "
                "WHERE source = ? AND step = ? AND task = ? "
                "ORDER BY number, offset LIMIT 1 OFFSET ?",
                (SOURCES.index(TRAIN), int(match[1]), match[2], int(match[3])),
            ).fetchone()
            if row is not None:
                place = AttemptPlace(TRAIN, row["number"], row["offset"])
                lost = row["failure"] == "lost"
                verdict = "\u2205" if lost else "\u2713" if row["is_right"] else "\u2717"
                found[str(place)] = f"{verdict} {match[2]} #{match[3]}"
    return found


def question_of(index: RunIndex, task: str) -> str | None:
    """Return the question of a task as its first attempt read it."""
    with index.reading() as connection:
        row = connection.execute(
            "SELECT json_extract(shown, '$.question') FROM attempts WHERE task = ? LIMIT 1", (task,)
        ).fetchone()
    return None if row is None else row[0]


def shown(row: sqlite3.Row, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a row of the index as `Row` of API.md.

    Args:
        row: a row of the table `attempts`.
        labels: attempt id -> label.
    """
    summary = json.loads(row["shown"])
    place = AttemptPlace(SOURCES[row["source"]], row["number"], row["offset"])
    tools = summary.get("tools")
    return {
        "id": str(place),
        "source": place.source,
        "step": row["step"] or None,
        "task": row["task"],
        "group": f"{row['step']}/{row['task']}",
        "sample": summary.get("sample"),
        "policy_version": summary.get("version"),
        "question": summary.get("question"),
        "reward": row["reward"],
        "terms": summary.get("terms"),
        "right": bool(row["is_right"]),
        "lost": row["failure"] == "lost",
        "finish": row["finish"],
        "answer": summary.get("answer"),
        "turns": row["turns"],
        "calls": row["calls"],
        "failed_calls": summary.get("failed_calls"),
        "tokens": row["tokens"],
        "sampled_tokens": row["sampled_tokens"],
        "mean_logprob": row["logprob"],
        "advantage": summary.get("advantage"),
        "trained": None if row["trained"] is None else bool(row["trained"]),
        "tools": sorted(tools) if isinstance(tools, dict) else [],
        "failure": row["failure"],
        "label": labels.get(str(place)),
        "time": summary.get("time"),
    }


def attempts_page(
    index: RunIndex, wanted: Filter, sort: str, page: Page, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the page of `GET .../attempts`."""
    order = _SORTS[sort.removeprefix("-")]
    if sort.startswith("-"):
        order = ", ".join(f"{column} DESC" for column in order.split(", "))
    with index.reading() as connection:
        (total,) = connection.execute(
            f"SELECT count(*) FROM attempts WHERE {wanted.condition}", wanted.values
        ).fetchone()
        rows = connection.execute(
            f"SELECT * FROM attempts WHERE {wanted.condition} ORDER BY {order} LIMIT ? OFFSET ?",
            (*wanted.values, page.limit, page.offset),
        ).fetchall()
    return {
        "total": total,
        "offset": page.offset,
        "attempts": [shown(row, labels) for row in rows],
    }


def groups_page(
    index: RunIndex,
    wanted: Filter,
    kind: str | None,
    sort: str,
    page: Page,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """Return the page of `GET .../groups`, without golds."""
    grouped = (
        "SELECT source, step, task, count(*) AS size, sum(is_right) AS passes, min(id) AS first, "
        "min(reward) AS low, max(reward) AS high, max(reward) - min(reward) AS spread, "
        "avg(reward) AS mean, avg(is_right) AS passed, max(trained) AS trained "
        f"FROM attempts WHERE {wanted.condition} GROUP BY source, step, task "
        f"HAVING {GROUP_KINDS[kind] if kind else '1'}"
    )
    with index.reading() as connection:
        (total,) = connection.execute(f"SELECT count(*) FROM ({grouped})", wanted.values).fetchone()
        rows = connection.execute(
            f"{grouped} ORDER BY {_GROUP_SORTS[sort]} LIMIT ? OFFSET ?",
            (*wanted.values, page.limit, page.offset),
        ).fetchall()
        groups: list[dict[str, Any]] = []
        for row in rows:
            members = connection.execute(
                "SELECT * FROM attempts WHERE source = ? AND step = ? AND task = ? "
                "ORDER BY number, offset LIMIT ?",
                (row["source"], row["step"], row["task"], _LARGEST_GROUP),
            ).fetchall()
            attempts = [shown(one, labels) for one in members]
            groups.append(
                {
                    "group": f"{row['step']}/{row['task']}",
                    "task": row["task"],
                    "step": row["step"],
                    "question": attempts[0]["question"] if attempts else None,
                    "gold": None,
                    "size": row["size"],
                    "right": row["passes"],
                    "reward_mean": row["mean"],
                    "reward_min": row["low"],
                    "reward_max": row["high"],
                    "trained": None if row["trained"] is None else bool(row["trained"]),
                    "attempts": attempts,
                }
            )
    return {"total": total, "offset": page.offset, "groups": groups}


def histogram(index: RunIndex, wanted: Filter, measure: str, bins: int) -> dict[str, Any]:
    """Return the counts of `GET .../histogram`."""
    column = MEASURES[measure]
    # an infinite value has no bin
    wanted = wanted.also(f"abs({column}) <= ?", sys.float_info.max)
    with index.reading() as connection:
        low, high = connection.execute(
            f"SELECT min({column}), max({column}) FROM attempts WHERE {wanted.condition}",
            wanted.values,
        ).fetchone()
        counts = {0: [0] * bins, 1: [0] * bins}
        if low is None:
            return {"of": measure, "edges": [], "right": [], "wrong": []}
        if low == high:  # one value has one bin without width
            bins, counts = 1, {0: [0], 1: [0]}
        width = (high - low) / bins
        rows = connection.execute(
            # a division by 0 is NULL in SQLite
            f"SELECT is_right, min(CAST(coalesce(({column} - ?) / ?, 0) AS INTEGER), ?) AS bin, "
            f"count(*) AS count FROM attempts WHERE {wanted.condition} GROUP BY is_right, bin",
            (low, width, bins - 1, *wanted.values),
        )
        for row in rows:
            counts[row["is_right"]][max(0, row["bin"])] += row["count"]
    edges = [low + width * number for number in range(bins + 1)]
    return {"of": measure, "edges": edges, "right": counts[1], "wrong": counts[0]}


def failures(index: RunIndex, wanted: Filter, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the causes of `GET .../failures`, the most frequent first."""
    with index.reading() as connection:
        (total,) = connection.execute(
            f"SELECT count(*) FROM attempts WHERE {wanted.condition}", wanted.values
        ).fetchone()
        failed = wanted.also("failure != ''")
        found: dict[str, list[tuple[int, int]]] = {}
        for row in connection.execute(
            f"SELECT failure, step, count(*) AS count FROM attempts WHERE {failed.condition} "
            "GROUP BY failure, step ORDER BY step",
            failed.values,
        ):
            found.setdefault(row["failure"], []).append((row["step"], row["count"]))
        sizes = {cause: sum(count for _, count in steps) for cause, steps in found.items()}
        causes = [
            {
                "cause": cause,
                "what": CAUSES.get(cause, ""),
                "attempts": size,
                "share": size / total,
                "by_step": found[cause],
                "examples": _examples(connection, wanted.also("failure = ?", cause), size, labels),
            }
            for cause, size in sorted(sizes.items(), key=lambda one: -one[1])
        ]
    return {"attempts": total, "failed": sum(sizes.values()), "causes": causes}


def _examples(
    connection: sqlite3.Connection, wanted: Filter, size: int, labels: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return at most three attempts, spread evenly."""
    places: Sequence[int] = sorted({number * size // _EXAMPLES for number in range(_EXAMPLES)})
    rows = (
        connection.execute(
            f"SELECT * FROM attempts WHERE {wanted.condition} ORDER BY id LIMIT 1 OFFSET ?",
            (*wanted.values, place),
        ).fetchone()
        for place in places
    )
    return [shown(row, labels) for row in rows if row is not None]
