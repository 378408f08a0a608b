"""A catalogue generated from a seed, and goals for it.

All text is in lower case and plain words, as a tiny policy reads it. A title is two attributes
and a noun, `soft waterproof jacket`; a third attribute is only on the page of features. The digest
of a title decides the split of its products and of the goals for them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split
from espalier.records import Split
from espalier.rewards.webshop import CATEGORY_SEPARATOR, ShopGoal, ShopProduct
from espalier_environments.shop.catalogue import Product, drawn_price_limit
from espalier_environments.shop.config import MadeCatalogueConfig
from espalier_environments.shop.goals import WordedGoal


class _Department(NamedTuple):
    """Nouns and attributes of its products, separated by spaces."""

    nouns: str
    attributes: str
    option: str
    """Name of the option besides color."""
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
    """Return the products; equal settings give equal products."""
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
    """Return the id with that number: a syllable and digits, such as `ko7`.

    Ids on a page begin with different syllables. With ids like `b133` and `b167`, a small policy,
    which reads digit by digit, had not learned to copy a digit after 900,000 tokens.
    """
    syllable, rest = divmod(number, 10**digits)
    return f"{_SYLLABLES[syllable]}{rest:0{digits}}"


_SYLLABLES = tuple(first + second for first in "bcdfghjklmnpqrstvwxz" for second in "aeiou")
MADE_ASIN = re.compile(rf"\b({'|'.join(_SYLLABLES)})([0-9]+)\b")
"""Matches an id of a generated catalogue; the groups are its syllable and its digits."""


def drawn_asin(dice: random.Random, digits: int) -> str:
    """Return a random id with that many digits, whether or not a product has it."""
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
    """Return the split of the product's title, which ignores the order of its words."""
    return dealt_split(" ".join(sorted(product.record.title.split())), splits)


def drawn_goal(dice: random.Random, product: Product, config: MadeCatalogueConfig) -> WordedGoal:
    """Return a goal that the product meets, with random options of it."""
    asks_hidden = dice.random() < config.hidden_share
    count = dice.randint(0 if not config.max_options else 1, config.max_options)
    names = sorted(dice.sample(list(product.options), count))
    chosen = {name: dice.choice(product.options[name]) for name in names}
    asked = product.record.attributes[: 3 if asks_hidden else 2]
    return goal_in_words(dice, product, chosen, asked)


def goal_in_words(
    dice: random.Random, product: Product, chosen: Mapping[str, str], asked: Sequence[str]
) -> WordedGoal:
    """Return the goal of buying a product with chosen options, in a random wording.

    Args:
        dice: draws the wording and the price limit.
        product: a product of any catalogue.
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
    return WordedGoal(
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
) -> Iterator[WordedGoal]:
    """Yield distinct goals of a split, in rounds over its products, until a round finds none."""
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
"""Most goals per product."""
