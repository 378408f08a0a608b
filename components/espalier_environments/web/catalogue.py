"""The records of generated sites: names that belong to one split, and values drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split
from espalier.records import DataError, Split
from espalier_environments.web.config import SiteConfig
from espalier_environments.web.website import NOBODY, STATUSES

USERS: tuple[str, ...] = (
    "ada", "ben", "cora", "dan", "ella", "finn", "gina", "hugo", "ida", "jon", "kira", "leo",
    "mia", "noah", "olga", "paul", "quin", "rosa", "sam", "tina", "uma", "vera", "walt", "xena",
    "yara", "zoe", "abel", "beth", "carl", "dora",
)  # fmt: skip
CITIES = ("salem", "dover", "aurora", "newport", "fairview", "milton", "oxford", "clinton")
_COLORS = (
    "red", "blue", "green", "black", "white", "yellow", "brown", "pink", "grey", "golden", "purple",
    "orange", "silver", "striped", "wooden", "round", "small", "heavy",
)  # fmt: skip
_KINDS = (
    "lamp", "chair", "kettle", "jacket", "desk", "bottle", "radio", "scarf", "mirror", "clock",
    "basket", "wallet", "helmet", "tent", "shelf", "pillow", "ladder", "bucket", "guitar", "camera",
    "carpet", "drum", "fan", "glove", "hammer", "kite", "mug", "oven", "rug", "sofa",
)  # fmt: skip
_TOPICS = (
    "bike", "garden", "movie", "recipe", "puzzle", "travel", "football", "painting", "coffee",
    "concert", "hiking", "fishing", "chess", "piano", "poetry", "sailing", "baking", "camping",
    "history", "physics",
)  # fmt: skip
_ASPECTS = (
    "tips", "news", "questions", "stories", "photos", "events", "rules", "ideas", "offers",
    "prizes", "meetings", "lessons",
)  # fmt: skip
_FAULTS = (
    "broken", "slow", "missing", "wrong", "empty", "hidden", "double", "late", "noisy", "blurry",
    "frozen", "lost",
)  # fmt: skip
_PARTS = (
    "login", "button", "search", "menu", "upload", "invoice", "export", "banner", "avatar",
    "footer", "password", "calendar", "backup", "printer", "update", "chart", "filter", "cursor",
    "report", "cache",
)  # fmt: skip
LABELS = ("bug", "feature", "question")
_NAMES = {
    "products": (_COLORS, _KINDS),
    "threads": (_TOPICS, _ASPECTS),
    "issues": (_FAULTS, _PARTS),
}

TABLES: tuple[str, ...] = tuple(_NAMES)
"""Tables of records whose names belong to one split."""


def names_of_split(table: str, split: Split, splits: SplitsConfig) -> tuple[str, ...]:
    """Return the names of a table's records that belong to a split, by the digest of the name."""
    first, second = _NAMES[table]
    names = (f"{one} {other}" for one in first for other in second)
    return tuple(name for name in names if dealt_split(name, splits) == split)


def made_site(
    config: SiteConfig, number: int, split: Split, splits: SplitsConfig
) -> dict[str, Any]:
    """Return the records of one site; equal arguments give equal records.

    Args:
        config: size of the site.
        number: number of the site in its split.
        split: split whose names it has.
        splits: shares by which names are assigned to splits.

    Raises:
        DataError: the split has fewer names than the site has records.
    """
    dice = random.Random(f"site {config.seed} {split} {number}")
    users = dice.sample(USERS, config.users)
    return {
        "menu": list(config.menu),
        "filters": config.filters,
        "page_size": config.page_size,
        "labels": list(LABELS),
        "account": {
            "user": users[0],
            "email": f"{users[0]}@site.local",
            "street": f"{dice.randint(1, 99)} mill road",
            "city": dice.choice(CITIES),
        },
        "users": [
            {"name": name, "city": dice.choice(CITIES), "since": dice.randint(1990, 2020)}
            for name in users
        ],
        "products": [
            _product(dice, place, name, users)
            for place, name in _drawn(dice, "products", config.products, split, splits)
        ],
        "cart": [],
        "orders": [],
        "threads": [
            _thread(dice, place, name, users)
            for place, name in _drawn(dice, "threads", config.threads, split, splits)
        ],
        "issues": [
            _issue(dice, place, name, users)
            for place, name in _drawn(dice, "issues", config.issues, split, splits)
        ],
    }


def _drawn(
    dice: random.Random, table: str, count: int, split: Split, splits: SplitsConfig
) -> Iterator[tuple[int, str]]:
    names = names_of_split(table, split, splits)
    if len(names) < count:
        raise DataError(
            f"environment.site.{table}={count}: the split {split} has {len(names)} names of its "
            "own; ask for fewer, or give it a larger share in [splits]"
        )
    return enumerate(dice.sample(names, count), start=1)


def _product(dice: random.Random, place: int, name: str, users: list[str]) -> dict[str, Any]:
    return {
        "id": place,
        "name": name,
        "kind": name.split()[1],
        "price": dice.randint(10, 99),
        "stock": dice.randint(2, 9),
        "seller": dice.choice(users),
        "reviews": [
            {"author": author, "stars": dice.randint(1, 5)}
            for author in dice.sample(users[1:], dice.randint(0, 1))
        ],
    }


def _thread(dice: random.Random, place: int, name: str, users: list[str]) -> dict[str, Any]:
    return {
        "id": place,
        "name": name,
        "author": dice.choice(users),
        "votes": dice.randint(10, 99),
        "voted": False,
        "comments": [
            {"author": author, "text": dice.choice(("i agree", "well said", "no idea"))}
            for author in dice.sample(users[1:], dice.randint(0, 1))
        ],
    }


def _issue(dice: random.Random, place: int, name: str, users: list[str]) -> dict[str, Any]:
    return {
        "id": place,
        "name": name,
        "reporter": dice.choice(users),
        "assignee": dice.choice((NOBODY, *users)),
        "status": dice.choice((*STATUSES, "open")),
        "label": dice.choice(LABELS),
    }
