"""The task that a trajectory solved on its site: the stated fact, or the submitted form.

    asked     who sells the red lamp ?         opened blue desk, said ada (who sells it)
    solved    who sells the blue desk ?

    asked     vote for bike tips .             wrote the comment "i agree" there, said done
    solved    post the comment i agree on bike tips .

The trajectory is played again on a fresh site. For a question, a page that shows the answer must
have been opened; a change must be the only one, and such that a task of its kind would ask for it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from espalier.config import SplitsConfig
from espalier.environments.contract import waited
from espalier.environments.demonstrations import Rejected
from espalier.environments.hindsight import OF_ANOTHER_SPLIT, Achieved, made_calls
from espalier.records import FinalAnswer, Split, Task, ToolCall
from espalier.records.folding import NameIndex
from espalier.records.trajectory import Trajectory
from espalier_environments.web.browser import Browser
from espalier_environments.web.catalogue import TABLES, names_of_split
from espalier_environments.web.config import TaskKind, WebConfig
from espalier_environments.web.evaluators import clean_answer
from espalier_environments.web.hosting import ProcessSite
from espalier_environments.web.tasks import DONE, Reached, reached_task, street_names
from espalier_environments.web.tools import WebTools
from espalier_environments.web.website import NOBODY

Records = dict[str, Any]
_FACTS: dict[str, tuple[TaskKind, ...]] = {
    "products": ("price", "seller"),
    "threads": ("author",),
    "issues": ("reporter", "assignee"),
}
"""Table -> kinds of questions about its records, whose names are those of the fields."""
_RECORD_PAGE = re.compile(r"/(shop|forum|issues)/([0-9]+)")
_SECTIONS = {"shop": "products", "forum": "threads", "issues": "issues"}


class WebHindsight:
    """A `Hindsight` over the training sites."""

    def __init__(
        self,
        config: WebConfig,
        splits: SplitsConfig,
        initial_state: Callable[[Task], str],
        *,
        family: str,
    ) -> None:
        """Store what trajectories are interpreted with.

        Args:
            config: settings of the family.
            splits: shares by which names are assigned to splits.
            initial_state: returns the initial records of a task's episodes, as JSON.
            family: name of the family in tasks.
        """
        self._config = config
        self._splits = splits
        self._initial_state = initial_state
        self._family = family
        judged: tuple[Split, ...] = ("dev", "heldout")
        self._apart = NameIndex(
            name
            for split in judged
            for names in (
                *(names_of_split(table, split, splits) for table in TABLES),
                street_names(split, splits),
            )
            for name in names
        )

    def achieved(self, task: Task, attempt: Trajectory) -> Achieved | Rejected:
        """Return the task that a trajectory solved, or why there is none."""
        made = list(made_calls(attempt))
        if not all(one.result.succeeded for one in made):
            return Rejected("failed_call")
        answer = attempt.answer or ""
        before = self._initial_state(task)
        walked = asyncio.run(self._walked(task, before, [one.call for one in made]))
        reached = _reached(json.loads(before), walked, clean_answer(answer), self._config.kinds)
        if isinstance(reached, Rejected):
            return reached
        if reached.kind not in self._config.kinds:
            return Rejected("kind_is_not_asked")
        number = cast("int", task.arguments["site"])
        solved = reached_task(reached, self._config, self._splits, number, self._family)
        if solved is None:
            return Rejected("nothing_to_ask_for")
        if solved.arguments["start"] != task.arguments["start"]:
            return Rejected("begun_elsewhere")
        if next(self._apart.found_in(str(solved.arguments["intent"])), None) is not None:
            return Rejected(OF_ANOTHER_SPLIT)
        last = attempt.messages[-1]
        said = FinalAnswer(last.content, last.thought)
        return Achieved(solved, (*(one.action for one in made), said))

    async def _walked(self, task: Task, records: str, calls: Sequence[ToolCall]) -> _Walked:
        """Play the calls on a fresh site."""
        site = ProcessSite(records)
        config = self._config
        browser = Browser(config.observation, config.max_observation_characters)
        tools = WebTools(browser, site, str(task.arguments["start"])).bound()
        by_name = {tool.spec.name: tool for tool in tools}
        opened: list[str] = []
        for call in calls:
            await waited(by_name[call.name].call(call, task))
            opened.append(browser.url)
        return _Walked(opened, json.loads(site.state))


class _Walked(NamedTuple):
    opened: Sequence[str]
    """Address of the page shown after each call."""
    after: Records


def _reached(
    before: Records, walked: _Walked, answer: str, kinds: Sequence[TaskKind]
) -> Reached | Rejected:
    """Return what was done, or why no task asks for it."""
    changed = tuple(table for table in before if before[table] != walked.after[table])
    if changed:
        if answer != DONE:
            return Rejected("said_something_else")
        return _changed(before, walked.after, changed) or Rejected("change_that_no_task_asks_for")
    pages = list(_record_pages(before, walked.opened))
    if answer == DONE:
        if pages and walked.opened[-1].startswith("/shop/") and pages[-1][0] == "products":
            return Reached("open", pages[-1][1])
        return Rejected("nothing_done")
    for table, record in reversed(pages):
        for kind in _FACTS[table]:
            if kind in kinds and str(record[kind]) == answer != NOBODY:
                return Reached(kind, record)
    return Rejected("answer_on_no_page_that_was_opened")


def _record_pages(before: Records, opened: Sequence[str]) -> Iterator[tuple[str, Records]]:
    """Yield table and record of each opened page of a record."""
    for url in opened:
        if found := _RECORD_PAGE.fullmatch(url.partition("?")[0]):
            table = _SECTIONS[found[1]]
            for record in before[table]:
                if str(record["id"]) == found[2]:
                    yield table, record


def _changed(before: Records, after: Records, tables: tuple[str, ...]) -> Reached | None:
    """Return the change of a site; None if no kind of task makes exactly this change."""
    match tables:
        case ("threads",) | ("issues",):
            return _of_record(before[tables[0]], after[tables[0]])
        case ("account",):
            account = before["account"]
            if _fields(account, after["account"]) == {"street"}:
                return Reached("street", account, after["account"]["street"])
        case ("cart",):
            return _bought("cart", before, after["cart"])
        case ("orders", "products"):
            placed = after["orders"][len(before["orders"]) :]
            return _bought("order", before, placed[0]["lines"]) if len(placed) == 1 else None
        case _:
            pass
    return None


def _of_record(before: Sequence[Records], after: Sequence[Records]) -> Reached | None:
    pairs = [(old, new) for old, new in zip(before, after, strict=False) if old != new]
    if len(before) != len(after) or len(pairs) != 1:
        return None
    old, new = pairs[0]
    fields = _fields(old, new)
    if fields == {"comments"} and new["comments"][:-1] == old["comments"]:
        return Reached("comment", old, new["comments"][-1]["text"])
    if fields == {"votes", "voted"}:
        return Reached("vote", old)
    if fields == {"assignee"} and new["assignee"] != NOBODY:
        return Reached("assign", old, new["assignee"])
    return Reached("close", old) if fields == {"status"} and new["status"] == "closed" else None


def _bought(kind: TaskKind, before: Records, lines: Sequence[Records]) -> Reached | None:
    if len(lines) != 1:
        return None
    (line,) = lines
    product = next(one for one in before["products"] if one["id"] == line["product"])
    return Reached(kind, product, str(line["quantity"]))


def _fields(old: Records, new: Records) -> set[str]:
    return {name for name in old if old[name] != new[name]}
