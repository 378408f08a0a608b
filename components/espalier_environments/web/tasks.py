"""Tasks on generated sites: words, checks, and the plan by which a teacher solves them.

A plan is a tuple of steps that refer to what a page shows, not to ids:

    ("find", "slow login")  ("click", "edit")  ("select", "assignee", "ada")  ("click", "save")
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split, make_task
from espalier.records import Split, Task
from espalier_environments.web.browser import Browser, Request
from espalier_environments.web.catalogue import made_site
from espalier_environments.web.config import TaskKind, WebConfig
from espalier_environments.web.website import NOBODY, Website

Step = tuple[str, ...]
Form = tuple[str, dict[str, str]]
"""Path and fields of a submitted form."""
DONE = "done"
"""Answer to a task that asks nothing."""
COMMENTS = (
    "thank you", "i agree", "well said", "good idea", "me too", "no way", "tell us more",
    "see you there",
)  # fmt: skip
_STREETS = tuple(
    f"{first} {second}"
    for first in (
        "mill", "oak", "hill", "lake", "church", "park", "river", "maple", "station", "garden",
        "castle", "bridge", "forest", "market", "meadow", "harbor",
    )
    for second in ("road", "lane", "street", "avenue", "square", "way")
)  # fmt: skip


class SiteRequest(NamedTuple):
    """One request to a site."""

    words: str
    start: str
    """Path of the visitor's first page."""
    about: tuple[str, ...]
    """Names that belong to the split."""
    steps: tuple[Step, ...]
    answer: str = ""
    """The required answer; empty if the site is to be changed or a page to be opened."""
    forms: tuple[Form, ...] = ()
    url: str = ""
    """Path of the page that must be open at the end; empty if any page will do."""


class _Chance(NamedTuple):
    """What a task is drawn from."""

    dice: random.Random
    site: dict[str, Any]
    record: dict[str, Any]
    splits: SplitsConfig
    split: Split

    @property
    def name(self) -> str:
        return self.record["name"]

    def worded(self, *ways: str, **parts: str) -> str:
        return self.dice.choice(ways).format(name=self.name, **parts)


def site_tasks(
    config: WebConfig, splits: SplitsConfig, split: Split, number: int, family: str
) -> list[Task]:
    """Return all tasks of one site: one for each record and fitting kind."""
    site = made_site(config.site, number, split, splits)
    pages: dict[str, str] = {}
    tasks: list[Task] = []
    for kind in config.kinds:
        table, ask = _ASKED[kind]
        for record in site[table] if table != "account" else [site["account"]]:
            dice = random.Random(f"task {config.site.seed} {split} {number} {kind} {record}")
            asked = ask(_Chance(dice, site, record, splits, split))
            if asked is not None:
                if asked.start not in pages:
                    pages[asked.start] = opening_page(asked.start, site, config)
                prompt = f"{asked.words}\n{pages[asked.start]}"
                tasks.append(_task(asked, kind, prompt, config.site.seed, (split, number), family))
    return tasks


def all_tasks(
    config: WebConfig, splits: SplitsConfig, split: Split, count: int, family: str
) -> list[Task]:
    """Return up to `count` tasks of a split's sites, in random order."""
    found = [
        task
        for number in range(config.sites)
        for task in site_tasks(config, splits, split, number, family)
    ]
    random.Random(f"{config.site.seed} {split}").shuffle(found)
    return found[:count]


class Reached(NamedTuple):
    """What a trajectory did on a site, as a task of that kind would have asked for it."""

    kind: TaskKind
    record: dict[str, Any]
    """The affected record in its initial state."""
    value: str = ""
    """What was filled in; empty if the kind leaves no choice."""


def reached_task(
    reached: Reached, config: WebConfig, splits: SplitsConfig, number: int, family: str
) -> Task | None:
    """Return the task that asks for it on the training site `number`; None if there is none."""
    site = made_site(config.site, number, "train", splits)
    kind, record, value = reached
    dice = random.Random(f"hindsight {config.site.seed} {number} {kind} {record} {value}")
    chance = _Chance(dice, site, record, splits, "train")
    asked = _FILLED_IN[kind](chance, value) if kind in _FILLED_IN else _ASKED[kind][1](chance)
    if asked is None:
        return None
    prompt = f"{asked.words}\n{opening_page(asked.start, site, config)}"
    return _task(asked, kind, prompt, config.site.seed, ("train", number), family)


def _task(
    asked: SiteRequest, kind: str, prompt: str, seed: int, place: tuple[Split, int], family: str
) -> Task:
    split, number = place
    checks: dict[str, Any] = {
        "eval_types": ["final_state"],
        "forms": [list(f) for f in asked.forms],
    }
    if asked.answer:
        checks["eval_types"].append("string_match")
        checks["reference_answers"] = {"exact_match": asked.answer}
    if asked.url:
        checks["eval_types"].append("open_page")
        checks["page"] = asked.url
    return make_task(
        family,
        prompt,
        gold=(asked.answer or json.dumps(checks),),
        split=split,
        source=f"made site {number}",
        key=f"{seed} {number} {kind} {asked.words}",
        kind="web",
        arguments={"intent": asked.words, "site": number, "start": asked.start, "eval": checks},
        metadata={
            "difficulty": float(len(asked.steps) + 1),
            "pattern": kind,
            "extra": {
                "kind": kind,
                "entities": list(asked.about),
                "steps": [list(step) for step in asked.steps],
            },
        },
    )


def opening_page(start: str, site: dict[str, Any], config: WebConfig) -> str:
    """Return the text of the policy's first page."""
    browser = Browser(config.observation, config.max_observation_characters)
    return browser.show(Website(site).reply("GET", start))


# ---------------------------------------------------------------------------------- plans


class PlanError(Exception):
    """A page does not have what a plan expects."""


class Planned(NamedTuple):
    """One call of a plan."""

    tool: str
    arguments: dict[str, str]
    element: str
    """Name of the element that it acts on."""
    shown: str


def planned_calls(
    steps: Sequence[Step], start: str, site: dict[str, Any], config: WebConfig
) -> Iterator[Planned]:
    """Yield the calls of a plan, with the ids that pages give their elements.

    Args:
        steps: the plan.
        start: path of the first page.
        site: records, which are changed.
        config: form of the pages.

    Raises:
        PlanError: a page does not have the element.
    """
    website = Website(site)
    browser = Browser(config.observation, config.max_observation_characters)
    browser.show(website.reply("GET", start))

    def clicked(role: str, name: str) -> Planned:
        number = _number_of(browser, role, name)
        request: Request = browser.click(number)
        browser.leave()
        return Planned("click", {"id": number}, name, browser.show(website.reply(*request)))

    for verb, name, *value in steps:
        match verb:
            case "find":
                while ("link", name) not in {(one.role, one.name) for one in browser.controls}:
                    yield clicked("link", "next")
                yield clicked("link", name)
            case "click":
                yield clicked("", name)
            case "select":
                number = _number_of(browser, "combobox", name)
                shown = browser.select(number, value[0])
                yield Planned("select", {"id": number, "option": value[0]}, name, shown)
            case _:
                number = _number_of(browser, "textbox", name)
                shown = browser.type(number, value[0])
                yield Planned("type", {"id": number, "text": value[0]}, name, shown)


def _number_of(browser: Browser, role: str, name: str) -> str:
    for one in reversed(
        browser.controls
    ):  # reversed: the menu, which may have the same name, comes first
        if one.name == name and one.role.endswith(role):
            return str(one.number)
    raise PlanError(f"{browser.url} has no {role or 'element'} {name}")


# ---------------------------------------------------------------------------------- kinds


def _fact(section: str, key: str, *ways: str) -> Callable[[_Chance], SiteRequest | None]:
    """Return the maker of a question about one field of a record."""

    def ask(chance: _Chance) -> SiteRequest | None:
        value = str(chance.record[key])
        if value == NOBODY:
            return None
        steps = (("find", chance.name),)
        return SiteRequest(chance.worded(*ways), f"/{section}", (chance.name,), steps, answer=value)

    return ask


def _open(chance: _Chance) -> SiteRequest:
    words = chance.worded("open the page of the {name} .", "show me the {name} .")
    steps = (("find", chance.name),)
    return SiteRequest(words, "/shop", (chance.name,), steps, url=f"/shop/{chance.record['id']}")


def _comment(chance: _Chance) -> SiteRequest:
    return _comment_of(chance, chance.dice.choice(COMMENTS))


def _comment_of(chance: _Chance, text: str) -> SiteRequest:
    words = chance.worded(
        "post the comment {text} on {name} .", "comment {text} on {name} .", text=text
    )
    path = f"/forum/{chance.record['id']}/comment"
    steps = (
        ("find", chance.name), ("click", "comment"), ("type", "text", text), ("click", "post"),
    )  # fmt: skip
    return SiteRequest(words, "/forum", (chance.name,), steps, forms=((path, {"text": text}),))


def _vote(chance: _Chance) -> SiteRequest:
    words = chance.worded("vote for {name} .", "give {name} your vote .")
    steps = (("find", chance.name), ("click", "vote"))
    path = f"/forum/{chance.record['id']}/vote"
    return SiteRequest(words, "/forum", (chance.name,), steps, forms=((path, {}),))


def _assign(chance: _Chance) -> SiteRequest:
    record = chance.record
    others = [one["name"] for one in chance.site["users"] if one["name"] != record["assignee"]]
    return _assigned(chance, chance.dice.choice(others))


def _assigned(chance: _Chance, user: str) -> SiteRequest:
    words = chance.worded("assign {name} to {user} .", "{user} should do {name} .", user=user)
    return _edited(chance, words, "assignee", user)


def _close(chance: _Chance) -> SiteRequest | None:
    if chance.record["status"] == "closed":
        return None
    words = chance.worded("close {name} .", "{name} is done , close it .")
    return _edited(chance, words, "status", "closed")


def _edited(chance: _Chance, words: str, field: str, value: str) -> SiteRequest:
    record = chance.record
    fields = {"assignee": record["assignee"], "status": record["status"], field: value}
    steps = (
        ("find", chance.name), ("click", "edit"), ("select", field, value), ("click", "save"),
    )  # fmt: skip
    path = f"/issues/{record['id']}/edit"
    return SiteRequest(words, "/issues", (chance.name,), steps, forms=((path, fields),))


def _street(chance: _Chance) -> SiteRequest | None:
    name = chance.dice.choice(street_names(chance.split, chance.splits))
    return _moved(chance, f"{chance.dice.randint(10, 99)} {name}")


def street_names(split: Split, splits: SplitsConfig) -> list[str]:
    """Return the names of streets, without a number, that belong to a split."""
    return [name for name in _STREETS if dealt_split(name, splits) == split]


def _moved(chance: _Chance, street: str) -> SiteRequest | None:
    number, _, name = street.partition(" ")
    if not number.isdecimal() or name not in street_names(chance.split, chance.splits):
        return None
    account = chance.record
    words = chance.dice.choice(("change my street to {} .", "i moved to {} .")).format(street)
    fields = {"email": account["email"], "street": street, "city": account["city"]}
    steps = (("click", "edit"), ("type", "street", street), ("click", "save"))
    return SiteRequest(words, "/account", (name,), steps, forms=(("/account/edit", fields),))


def _cart(chance: _Chance) -> SiteRequest:
    return _carted(chance, str(chance.dice.randint(1, min(chance.record["stock"], 3))))


def _carted(chance: _Chance, quantity: str) -> SiteRequest:
    words = chance.worded(
        "put {quantity} {name} in the cart .", "add {quantity} {name} to the cart .",
        quantity=quantity,
    )  # fmt: skip
    return _bought(chance, words, quantity)


def _order(chance: _Chance) -> SiteRequest:
    return _ordered(chance, str(chance.dice.randint(1, min(chance.record["stock"], 3))))


def _ordered(chance: _Chance, quantity: str) -> SiteRequest:
    words = chance.worded("order {quantity} {name} .", "buy {quantity} {name} .", quantity=quantity)
    asked = _bought(chance, words, quantity)
    return asked._replace(
        steps=(*asked.steps, ("click", "order")), forms=(*asked.forms, ("/cart/order", {}))
    )


def _bought(chance: _Chance, words: str, quantity: str) -> SiteRequest:
    path = f"/shop/{chance.record['id']}/cart"
    chosen = () if quantity == "1" else (("select", "quantity", quantity),)
    steps = (("find", chance.name), *chosen, ("click", "add to cart"))
    forms = ((path, {"quantity": quantity}),)
    return SiteRequest(words, "/shop", (chance.name,), steps, forms=forms)


_ASKED: dict[TaskKind, tuple[str, Callable[[_Chance], SiteRequest | None]]] = {
    "price": (
        "products",
        _fact("shop", "price", "what is the price of the {name} ?", "how much is the {name} ?"),
    ),
    "seller": (
        "products",
        _fact("shop", "seller", "who sells the {name} ?", "from whom is the {name} ?"),
    ),
    "author": ("threads", _fact("forum", "author", "who wrote {name} ?", "who began {name} ?")),
    "reporter": (
        "issues",
        _fact("issues", "reporter", "who reported {name} ?", "who found {name} ?"),
    ),
    "assignee": (
        "issues",
        _fact("issues", "assignee", "who is {name} assigned to ?", "who works on {name} ?"),
    ),
    "open": ("products", _open),
    "comment": ("threads", _comment),
    "vote": ("threads", _vote),
    "assign": ("issues", _assign),
    "close": ("issues", _close),
    "street": ("account", _street),
    "cart": ("products", _cart),
    "order": ("products", _order),
}
_FILLED_IN: dict[TaskKind, Callable[[_Chance, str], SiteRequest | None]] = {
    "comment": _comment_of,
    "assign": _assigned,
    "street": _moved,
    "cart": _carted,
    "order": _ordered,
}
"""Kinds that leave a choice of what is filled in."""
