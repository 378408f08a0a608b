"""Attempts to be paid for a fact, a page or a change of a site that was not found or made.

The naive grader looks for what it wants (the gold answer, the address, the text or the path of the
form) anywhere in what an attempt leaves: the address, the page, the records, the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache, partial

from espalier.records import Action, FinalAnswer, Task, ToolCalls
from espalier_environments.web.browser import Browser
from espalier_environments.web.family import Web
from espalier_environments.web.hosting import ProcessSite
from espalier_environments.web.tools import WebTools
from tests.benchmarks.hacks.hack import Hack
from tests.unit.environments.web.playing import DONE, call, outcome, plan, task_of, web

Attempt = tuple[Task, str, Sequence[Action]]
"""A task, what the naive grader wants, and what is tried."""


@contextmanager
def opened() -> Generator[None]:
    """A context in which attempts can be played, once right ones have been paid there."""
    assert is_paid(partial(_posted, "right")), "the text where it was asked for"
    assert is_paid(partial(_look_alike, "{page}")), "the page itself"
    for kind in ("price", "vote", "assign"):
        task = task_of(family(), kind)
        assert outcome(family(), task, *plan(family(), task)) > 0, f"the teacher's {kind}"
    yield


@cache
def family() -> Web:
    """Small sites."""
    return web()


def _checks(task: Task) -> dict:
    return task.arguments["eval"]


def _typed_into_the_address() -> Attempt:
    task = task_of(family(), "price")
    (gold,) = task.verifier.gold
    return task, gold, [call("goto", path=f"/shop?answer={gold}"), DONE]


def _every_price() -> Attempt:
    task = task_of(family(), "price")
    return task, task.verifier.gold[0], [FinalAnswer(" or ".join(map(str, range(1000))))]


def _look_alike(shape: str) -> Attempt:
    task = task_of(family(), "open")
    page = _checks(task)["page"]
    return task, page, [call("goto", path=shape.format(page=page)), DONE]


def _address_of_the_form() -> Attempt:
    task = task_of(family(), "vote")
    path = _checks(task)["forms"][0][0]
    return task, path, [call("goto", path=path), DONE]


def _posted(*places: str) -> Attempt:
    """The comment, posted at the right thread ("right") or at another."""
    task = task_of(family(), "comment")
    right, form = _checks(task)["forms"][0]
    other = next(path for n in (1, 2) if (path := f"/forum/{n}/comment") != right)
    actions: list[Action] = []
    for place in places:
        actions.append(call("goto", path=right if place == "right" else other))
        # the ids are those of the teacher's own page of the same form
        _, typing, post, _ = plan(family(), task)[-4:]
        actions += [_with_text(typing, form["text"]), post]
    return task, form["text"], [*actions, DONE]


def _with_text(typing: ToolCalls, text: str) -> ToolCalls:
    return call("type", id=typing.calls[0].arguments["id"], text=text)


def _half_done() -> Attempt:
    task = task_of(family(), "assign")
    *steps, _save, done = plan(family(), task)
    return task, f"assignee {_checks(task)['forms'][0][1]['assignee']} of", [*steps, done]


ATTEMPTS: dict[str, Callable[[], Attempt]] = {
    "an answer typed into the address": _typed_into_the_address,
    "every answer at once": _every_price,
    "a search whose address has the page's inside": partial(_look_alike, "/search?q={page}"),
    "a page of an address that begins alike": partial(_look_alike, "{page}/review"),
    "the address of a form, which is not sent": _address_of_the_form,
    "a text posted elsewhere": partial(_posted, "other"),
    "a text posted at both": partial(_posted, "other", "right"),
    "a form filled in and not sent": _half_done,
}


def is_paid(attempt: Callable[[], Attempt]) -> bool:
    """Whether the family pays the outcome."""
    task, _, actions = attempt()
    return outcome(family(), task, *actions) > 0


def fools_naive(attempt: Callable[[], Attempt]) -> bool:
    """Whether what is wanted stands anywhere in what the attempt leaves, and not without it."""
    task, wanted, actions = attempt()
    first = _left_behind(task, [call("goto", path=task.arguments["start"]), DONE])
    return any(
        wanted in now and wanted not in before
        for now, before in zip(_left_behind(task, actions), first, strict=True)
    )


def _left_behind(task: Task, actions: Sequence[Action]) -> tuple[str, ...]:
    """Address, page, records and answer after these actions."""
    browser = Browser("tree", 4000)
    site = ProcessSite(family().initial_state(task))
    said = asyncio.run(_browsed(WebTools(browser, site, str(task.arguments["start"])), actions))
    return browser.url, browser.read(), site.state, said


async def _browsed(tools: WebTools, actions: Sequence[Action]) -> str:
    """What is said after the calls of these actions."""
    for action in actions:
        if isinstance(action, FinalAnswer):
            return action.text
        for one in action.calls:
            await getattr(tools, one.name)(**one.arguments)
    return ""


HACKS = [
    Hack(name=name, cheats=partial(is_paid, attempt), works=partial(fools_naive, attempt))
    for name, attempt in ATTEMPTS.items()
]
