"""A catalogue made from a seed, and what people ask for in it.

All text is lower case and of plain words, as an embedded policy reads it. A title is two attributes
and a noun, `soft waterproof jacket`; a third attribute stands on the page of features alone. A
title belongs to one split by its digest: so do the products that have it, and the goals for them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split
from espalier.environments.shop.catalogue import Product, drawn_price_limit
from espalier.environments.shop.config import MadeCatalogueConfig
from espalier.environments.shop.goals import AskedGoal
from espalier.records import Split
from espalier.rewards import CATEGORY_SEPARATOR, ShopGoal, ShopProduct


class _Department(NamedTuple):
    """What its products are called and are like: words, with spaces between them."""

    nouns: str
    attributes: str
    option: str
    """Name of the option beside color."""
    values: str


_SIZES = "small medium large"
DEPARTMENTS = {
    "clothing": _Department(
        nouns="jacket shirt scarf coat sweater sock",
        attributes="soft warm washable breathable waterproof stretchy casual lightweight",
        option="size",
        values=_SIZES,
    ),
    "home": _Department(
        nouns="lamp chair blanket pillow rug curtain",
        attributes="foldable washable handmade modern vintage rustic sturdy woven",
        option="size",
        values=_SIZES,
    ),
    "kitchen": _Department(
        nouns="kettle bottle bowl mug tray jar",
        attributes="leakproof stackable insulated heavy smooth reusable unbreakable classic",
        option="material",
        values="glass metal plastic",
    ),
    "electronics": _Department(
        nouns="speaker radio camera keyboard headset monitor",
        attributes="wireless portable rechargeable waterproof digital quiet universal smart",
        option="power",
        values="battery solar cable",
    ),
    "beauty": _Department(
        nouns="soap cream shampoo lotion candle perfume",
        attributes="organic vegan scented gentle natural refillable odorless pure",
        option="scent",
        values="vanilla citrus jasmine",
    ),
    "sport": _Department(
        nouns="tent helmet backpack racket mat rope",
        attributes="foldable padded lightweight inflatable adjustable sturdy flexible firm",
        option="size",
        values=_SIZES,
    ),
}
COLORS = "black white red blue green yellow purple pink gray orange"
_COLORS_OF_A_PRODUCT = 3
_WISHES = (
    "i need a {title}{hidden}{options}{price} .",
    "find me a {title}{hidden}{options}{price} .",
    "i want to buy a {title}{hidden}{options}{price} .",
)


def make_products(config: MadeCatalogueConfig) -> list[Product]:
    """The products; equal settings give equal ones."""
    dice = random.Random(f"shop catalogue {config.seed}")
    digits = 1
    while len(_SYLLABLES) * 10**digits < config.products:
        digits += 1
    places = dice.sample(range(len(_SYLLABLES) * 10**digits), config.products)
    names = list(DEPARTMENTS)
    return [
        _product(dice, names[place % len(names)], _asin(number, digits))
        for place, number in enumerate(places)
    ]


def _asin(number: int, digits: int) -> str:
    """The id of that number: a syllable and digits, `ko7`.

    Ids of a page begin with different words: of `b133` and `b167` a small policy, which reads
    figure by figure, copied no figure after 900,000 tokens.
    """
    syllable, rest = divmod(number, 10**digits)
    return f"{_SYLLABLES[syllable]}{rest:0{digits}}"


_SYLLABLES = tuple(first + second for first in "bcdfghjklmnpqrstvwxz" for second in "aeiou")
MADE_ASIN = re.compile(rf"\b({'|'.join(_SYLLABLES)})([0-9]+)\b")
"""An id of a made catalogue; its syllable and its digits."""


def drawn_asin(dice: random.Random, digits: int) -> str:
    """A random id with so many digits, of a product or of none."""
    return _asin(dice.randrange(len(_SYLLABLES) * 10**digits), digits)


def _product(dice: random.Random, name: str, asin: str) -> Product:
    department = DEPARTMENTS[name]
    noun = dice.choice(department.nouns.split())
    attributes = tuple(dice.sample(department.attributes.split(), 3))
    price = float(dice.randint(10, 99))
    return Product(
        asin=asin,
        record=ShopProduct(
            title=f"{attributes[0]} {attributes[1]} {noun}",
            query=noun,
            product_category=f"{name} {CATEGORY_SEPARATOR} {noun}",
            attributes=attributes,
            bullet_points=(attributes[2],),
            description=f"a {noun} of our {name} department",
        ),
        price=price,
        price_tag=f"{price:g}",
        options={
            "color": tuple(dice.sample(COLORS.split(), _COLORS_OF_A_PRODUCT)),
            department.option: tuple(dice.sample(department.values.split(), 2)),
        },
    )


def split_of(product: Product, splits: SplitsConfig) -> Split:
    """The split of the product's title, whichever its attributes stand first."""
    return dealt_split(" ".join(sorted(product.record.title.split())), splits)


def drawn_goal(dice: random.Random, product: Product, config: MadeCatalogueConfig) -> AskedGoal:
    """A goal that the product meets, with options of it at random."""
    asks_hidden = dice.random() < config.hidden_share
    count = dice.randint(0 if not config.max_options else 1, config.max_options)
    names = sorted(dice.sample(list(product.options), count))
    chosen = {name: dice.choice(product.options[name]) for name in names}
    asked = product.record.attributes[: 3 if asks_hidden else 2]
    return goal_in_words(dice, product, chosen, asked)


def goal_in_words(
    dice: random.Random, product: Product, chosen: Mapping[str, str], asked: Sequence[str]
) -> AskedGoal:
    """The goal of buying a product with chosen options, in one of a few wordings.

    Args:
        dice: draws the wording and the price limit.
        product: of any catalogue.
        chosen: option -> value.
        asked: attributes of the product, at least one.
    """
    record = product.record
    limit = drawn_price_limit(dice, product.price)
    beside = [one for one in asked if one not in record.title]
    spelled = [one for one in asked if one in record.title]
    words = {
        "title": " ".join((*spelled, record.query)),
        "hidden": f" that is {' and '.join(beside)}" if beside else "",
        "options": "".join(f" , {name} {value}" for name, value in chosen.items()),
        "price": "" if limit is None else f" , under {limit:g} dollars",
    }
    hidden = " and a hidden attribute" if beside else ""
    return AskedGoal(
        instruction=dice.choice(_WISHES).format(**words),
        goal=ShopGoal(
            attributes=tuple(asked),
            options=tuple(chosen.values()),
            price_upper=limit,
            title=record.title,
            query=record.query,
            product_category=record.product_category,
        ),
        asin=product.asin,
        chosen=dict(chosen),
        kind=f"{len(chosen)} options{hidden}",
    )


def made_goals(
    products: Sequence[Product], config: MadeCatalogueConfig, splits: SplitsConfig, split: Split
) -> Iterator[AskedGoal]:
    """Goals of a split, each once, in rounds over its products; ends where nothing new is found."""
    own = [product for product in products if split_of(product, splits) == split]
    seen: set[str] = set()
    for number in range(_ROUNDS):
        dice = random.Random(f"shop goals {config.seed} {split} {number}")
        before = len(seen)
        for product in dice.sample(own, len(own)):
            asked = drawn_goal(dice, product, config)
            if asked.instruction not in seen:
                seen.add(asked.instruction)
                yield asked
        if len(seen) == before:
            return


_ROUNDS = 200
"""Goals of a product, at most."""
