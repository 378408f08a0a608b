"""Tasks in WebArena's format (Zhou et al. 2023, arXiv:2307.13854), played on a generated site.

A file is a JSON array of {task_id, start_url, intent, eval: {eval_types, reference_answers,
reference_url, program_html}, ...}. `__HOMEPAGE__`, `__SHOPPING__`, `__REDDIT__` and `__GITLAB__`
are the sections of the site; tasks on other sites of WebArena are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from espalier.config import SplitsConfig
from espalier.environments.benchmarks import BenchmarkRow, benchmark_tasks, read_rows
from espalier.environments.family import make_task
from espalier.records import DataError, Task
from espalier_environments.web.catalogue import made_site
from espalier_environments.web.config import WebConfig
from espalier_environments.web.document import SelectorError, first_match, parse_html
from espalier_environments.web.evaluators import LOCATOR
from espalier_environments.web.tasks import opening_page
from espalier_environments.web.website import HOST

_SECTIONS = {
    "__HOMEPAGE__": "",
    "__SHOPPING__": "/shop",
    "__REDDIT__": "/forum",
    "__GITLAB__": "/issues",
}
_ELSEWHERE = re.compile("__[A-Z_]+__")
_TYPES = ("string_match", "url_match", "program_html")
WEBARENA_SITE = 0
"""Number of the held-out site that the tasks are played on."""


class _Checks(BenchmarkRow):
    eval_types: list[str] = Field(min_length=1)
    reference_answers: dict[str, JsonValue] | None = None
    reference_url: str | None = ""
    program_html: list[dict[str, JsonValue]] | None = None
    url_note: str = "GOLD in PRED"


class WebArenaRow(BenchmarkRow):
    """A task in the form of the file."""

    task_id: int
    start_url: str
    intent: str = Field(min_length=1)
    eval: _Checks


def read_webarena(path: Path, config: WebConfig, splits: SplitsConfig, family: str) -> list[Task]:
    """Return the tasks of a file, in order.

    Raises:
        DataError: a row is malformed, belongs to another site, or needs a model or JavaScript to
            be judged.
    """
    site = made_site(config.site, WEBARENA_SITE, "heldout", splits)
    tasks = [
        _task(row, where, path, config, family, site) for where, row in read_rows(path, WebArenaRow)
    ]
    return benchmark_tasks(path, tasks)


def _task(
    row: WebArenaRow,
    where: str,
    path: Path,
    config: WebConfig,
    family: str,
    site: dict[str, Any],
) -> Task:
    checks = _checked(row.eval, where)
    start = _local(row.start_url.partition(" |AND| ")[0], where) or "/"
    answers = checks.get("reference_answers", {})
    golds = [
        value if isinstance(value, str) else ", ".join(map(str, value))
        for value in answers.values()
    ]
    kind = "+".join(row.eval.eval_types)
    return make_task(
        family,
        f"{row.intent}\n{opening_page(start, site, config)}",
        gold=("; ".join(golds) or checks.get("reference_url") or kind,),
        split="heldout",
        source=path.name,
        key=f"webarena {row.task_id}",
        kind="web",
        arguments={"intent": row.intent, "site": WEBARENA_SITE, "start": start, "eval": checks},
        metadata={"pattern": kind, "extra": {"kind": kind}},
    )


def _checked(checks: _Checks, where: str) -> dict[str, Any]:
    """Return the checks with local addresses.

    Raises:
        DataError: a check is not supported.
    """
    found: dict[str, Any] = {"eval_types": checks.eval_types}
    for kind in checks.eval_types:
        match kind:
            case "string_match":
                found["reference_answers"] = _answers(checks.reference_answers, where)
            case "url_match":
                if checks.url_note != "GOLD in PRED":
                    raise DataError(f"{where}: eval.url_note {checks.url_note!r} is not known")
                urls = (checks.reference_url or "").split(" |OR| ")
                if not all(urls):
                    raise DataError(f"{where}: eval.reference_url is missing")
                found["reference_url"] = " |OR| ".join(HOST + _local(one, where) for one in urls)
            case "program_html":
                if not checks.program_html:
                    raise DataError(f"{where}: eval.program_html is missing")
                found["program_html"] = [_target(one, where) for one in checks.program_html]
            case _:
                raise DataError(f"{where}: eval_types knows {', '.join(_TYPES)} and not {kind!r}")
    return found


def _answers(given: dict[str, JsonValue] | None, where: str) -> dict[str, JsonValue]:
    if not given:
        raise DataError(f"{where}: eval.reference_answers is missing")
    for approach, value in given.items():
        if approach == "must_include" and _are_texts(value):
            continue
        if approach == "exact_match" and isinstance(value, str):
            continue
        if approach == "fuzzy_match" and value == "N/A":
            continue
        raise DataError(
            f"{where}: eval.reference_answers.{approach}: only a text for exact_match, texts for "
            'must_include and "N/A" for fuzzy_match are judged by rule; leave the others out'
        )
    return given


def _are_texts(value: JsonValue) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


def _target(target: dict[str, JsonValue], where: str) -> dict[str, JsonValue]:
    url, locator = target.get("url"), target.get("locator")
    required = target.get("required_contents")
    if not isinstance(url, str) or not isinstance(locator, str) or not isinstance(required, dict):
        raise DataError(f"{where}: program_html needs url, locator and required_contents")
    if url.startswith("func") or not _is_located(locator):
        raise DataError(
            f"{where}: program_html is judged by an address and by "
            "document.querySelector('...').outerText, of tags, #ids, .classes and [attributes]; "
            f"not by {locator if not url.startswith('func') else url!r}"
        )
    is_exact = isinstance(required.get("exact_match"), str)
    if not is_exact and not _are_texts(required.get("must_include")):
        raise DataError(f"{where}: required_contents needs exact_match, or texts in must_include")
    return {**target, "url": url if url == "last" else _local(url, where) or "/"}


def _is_located(locator: str) -> bool:
    if not locator.strip():
        return True
    found = LOCATOR.fullmatch(locator.strip())
    if found is None:
        return False
    try:
        first_match(parse_html(""), found["selector"])
    except SelectorError:
        return False
    return True


def _local(url: str, where: str) -> str:
    """Return path and query of an address of the site; empty for its root."""
    for name, section in _SECTIONS.items():
        if url.startswith(name):
            return _path(section + url.removeprefix(name), url, where)
    if unknown := _ELSEWHERE.search(url):
        raise DataError(
            f"{where}: {unknown[0]} is not part of the site; it has {', '.join(_SECTIONS)}"
        )
    return _path(url.removeprefix(HOST), url, where)


def _path(path: str, url: str, where: str) -> str:
    if path and not path.startswith(("/", "?")):
        raise DataError(f"{where}: {url!r} is no address of the site")
    return path
