"""The scores of an episode: WebArena's three evaluators, and two for our own tasks.

WebArena's evaluators (Zhou et al. 2023, arXiv:2307.13854; evaluation_harness/evaluators.py) work as
upstream: `must_include` looks for text anywhere in the answer, and a reference URL matches if it is
part of the visitor's URL. Answers that a model would have to compare are refused on loading.

Our own evaluators are `final_state`, which requires exactly the records after the gold forms, and
`open_page`, which requires exactly that page's path.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from espalier_environments.web.document import first_match, parse_html
from espalier_environments.web.website import HOST, Website


@dataclass(frozen=True, slots=True)
class Ending:
    """The result of an episode."""

    answer: str
    """The final answer; empty if there is none."""
    url: str
    """Path and query of the last page shown."""
    state: str
    """State of the site, as written by `Website.state`."""


def score(checks: dict[str, Any], ending: Ending, initial: str) -> float:
    """Return the product of the evaluators that a task names: 0 or 1.

    Args:
        checks: the value of `eval` in a task, in WebArena's format or our own.
        ending: the result of the episode.
        initial: the initial records of the episode, as JSON.
    """
    for kind in checks["eval_types"]:
        match kind:
            case "string_match":
                passed = is_string_match(checks["reference_answers"], ending.answer)
            case "url_match":
                passed = is_url_match(checks["reference_url"], HOST + ending.url)
            case "program_html":
                passed = is_program_match(checks["program_html"], ending)
            case "open_page":
                passed = ending.url.partition("?")[0] == checks["page"]
            case _:
                passed = ending.state == state_after(initial, checks["forms"])
        if not passed:
            return 0.0
    return 1.0


def state_after(initial: str, forms: Sequence[Sequence[Any]]) -> str:
    """Return the state of a fresh site after these forms, which are pairs of path and fields."""
    site = Website(json.loads(initial))
    for path, fields in forms:
        site.reply("POST", path, fields)
    return site.state()


def clean_answer(answer: str) -> str:
    """Return an answer in lower case, without outer white space and one pair of quotes."""
    answer = answer.strip()
    for quote in ("'", '"'):
        if answer.startswith(quote) and answer.endswith(quote):
            return answer[1:-1].lower()
    return answer.lower()


def is_exact_match(reference: str, answer: str) -> bool:
    """Return whether two answers are equal once they are cleaned."""
    return clean_answer(answer) == clean_answer(reference)


def includes(reference: str, answer: str, *, as_token: bool = False) -> bool:
    """Return whether the answer contains the reference; a single character must be a token."""
    wanted, given = clean_answer(reference), clean_answer(answer)
    if as_token and len(wanted) == 1:
        return wanted in _TOKEN.findall(given)
    return wanted in given


_TOKEN = re.compile(r"\w+(?:[.,:]\d+)*|[^\w\s]")
"""Words, numbers and signs. Upstream uses NLTK's tokenizer, but only to look for single characters,
which this pattern separates at the same places."""


def is_string_match(references: dict[str, Any], answer: str) -> bool:
    """Return whether an answer satisfies all references."""
    said = clean_answer(answer)
    for approach, value in references.items():
        if approach == "must_include":
            wanted = cast("list[str]", value)
            if not all(includes(one, said, as_token=len(wanted) == 1) for one in wanted):
                return False
        elif not is_exact_match(str(value), said):  # exact_match, and fuzzy_match of "N/A"
            return False
    return True


def is_url_match(reference: str, url: str) -> bool:
    """Return whether `url` contains one of the addresses separated by " |OR| ", with its query."""
    base, query = _parsed(url)
    bases: list[str] = []
    wanted: dict[str, set[str]] = {}
    for one in reference.split(" |OR| "):
        reference_base, reference_query = _parsed(one)
        bases.append(reference_base)
        for name, values in reference_query.items():
            wanted.setdefault(name, set()).update(values)
    return any(one in base for one in bases) and all(
        values & set(query.get(name, [])) for name, values in wanted.items()
    )


def _parsed(url: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlsplit(url.rstrip("/"))
    return (parts.netloc + parts.path).rstrip("/"), parse_qs(parts.query)


LOCATOR = re.compile(
    r"""document\.querySelector\((?P<quote>["'`])(?P<selector>.+?)(?P=quote)\)"""
    r"""\??\.(?P<property>outerText|innerText|textContent|value|href)"""
)
"""The supported subset of JavaScript: one element, and its text or an attribute."""


def is_program_match(targets: Sequence[dict[str, Any]], ending: Ending) -> bool:
    """Return whether each page has the required content where its locator points."""
    site = Website(json.loads(ending.state))
    for target in targets:
        page = site.reply("GET", ending.url if target["url"] == "last" else target["url"])
        found = html.unescape(located(page.html, target["locator"]))
        required = target["required_contents"]
        if "exact_match" in required:
            if not is_exact_match(required["exact_match"], found):
                return False
        elif not all(
            any(includes(one, found) for one in content.split(" |OR| "))
            for content in required["must_include"]
        ):
            return False
    return True


def located(page: str, locator: str) -> str:
    """Return the text that a locator finds in a page; empty if the element does not exist."""
    if not locator.strip():
        return page
    found = LOCATOR.fullmatch(locator.strip())
    assert found is not None, "locators are checked when a task is loaded"
    element = first_match(parse_html(page), found["selector"])
    if element is None:
        return ""
    if found["property"] in ("value", "href"):
        return element.attributes.get(found["property"], "")
    return element.text
