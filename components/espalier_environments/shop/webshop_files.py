"""WebShop's own files: products, their attributes, and people's instructions.

    items_shuffle*.json     [{"asin", "name", "category", "query", "product_category", "pricing",
                            "full_description", "small_description", "customization_options"}, ...]
    items_ins_v2*.json      {asin: {"attributes", "instruction", "instruction_attributes"}}
    items_human_ins*.json   {asin: [{"instruction", "instruction_attributes",
                            "instruction_options"}, ...]}

They are read as in `web_agent_site/engine` of princeton-nlp/WebShop at 64fa2a5. What upstream draws
without a seed is drawn here from the product's id: a price within a range, and the price limit of a
goal. Without a file of products, goals are scored by their attributes only.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple, cast

from pydantic import JsonValue

from espalier.config import SplitsConfig
from espalier.environments.benchmarks import (
    BenchmarkRow,
    parsed_row,
    read_mapping,
    read_rows,
)
from espalier.environments.family import dealt_split
from espalier.records import DataError, Split
from espalier.rewards.webshop import ShopGoal, ShopProduct, first_color, token_set_ratio
from espalier_environments.shop.catalogue import Catalogue, Product, drawn_price_limit
from espalier_environments.shop.goals import WordedGoal

PRODUCTS, ATTRIBUTES, HUMAN = "items_shuffle", "items_ins_v2", "items_human_ins"
_UNPRICED = 100.0
"""Price in dollars of a product without a price."""
_MAX_ASIN = 10
_MAX_COMBINATIONS = 20
"""Most goals made of one product's options; upstream uses all combinations."""
_OFFICIAL_TEST, _OFFICIAL_DEV = 500, 1500
"""Positions in the shuffled goals where test and dev end (`baseline_models/env.py`)."""


class PublicShop(NamedTuple):
    """A catalogue, and its goals in the order of upstream's shuffle."""

    catalogue: Catalogue
    goals: Sequence[WordedGoal]
    is_official: bool
    """Whether there are enough goals by people for upstream's split by position."""

    def goals_of(self, split: Split, splits: SplitsConfig) -> list[WordedGoal]:
        """Return the goals of a split, by position or by the digest of the product's id."""
        if not self.is_official:
            return [goal for goal in self.goals if dealt_split(goal.asin, splits) == split]
        first, last = {
            "heldout": (0, _OFFICIAL_TEST),
            "dev": (_OFFICIAL_TEST, _OFFICIAL_DEV),
            "train": (_OFFICIAL_DEV, None),
        }[split]
        return list(self.goals[first:last])


class _ProductRow(BenchmarkRow):
    """A product; fields that its pages do not show are ignored."""

    asin: str
    name: str
    category: str = ""
    query: str = ""
    product_category: str = ""
    full_description: str | None = None
    small_description: tuple[str | None, ...] | str | None = None
    pricing: str | None = None
    customization_options: JsonValue = None


class _AttributesRow(BenchmarkRow):
    attributes: tuple[str, ...] = ()
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] = ()


class _HumanRow(BenchmarkRow):
    instruction: str
    instruction_attributes: tuple[str, ...] = ()
    instruction_options: tuple[str, ...] | dict[str, str] = ()


def load_webshop(path: Path, *, max_results: int) -> PublicShop:
    """Return the shop in a folder of WebShop's files, or of one file of goals and those beside it.

    A folder's goals are those of people if it has their file, else those in the file of attributes.

    Raises:
        DataError: a file is missing or malformed, or there is no goal.
    """
    folder = path if path.is_dir() else path.parent
    human_path = path if _is_a(path, HUMAN) else _only(folder, HUMAN) if path.is_dir() else None
    attributes_path = path if _is_a(path, ATTRIBUTES) else _only(folder, ATTRIBUTES)
    if path.is_file() and path not in (human_path, attributes_path):
        raise DataError(f"{path}: WebShop's goals are in {ATTRIBUTES}*.json or {HUMAN}*.json")
    if attributes_path is None:
        raise DataError(f"{folder}: has no {ATTRIBUTES}*.json, the attributes of products")
    rows = read_mapping(attributes_path)
    _require_unicode(str(attributes_path), rows)
    attributes = {
        asin: parsed_row(f"{attributes_path}, {asin}", row, _AttributesRow)
        for asin, row in rows.items()
    }
    products_path = _only(folder, PRODUCTS)
    if products_path is not None:
        products = _products(products_path, attributes)
        goals = list(
            _made_goals(products, attributes)
            if human_path is None
            else _human_goals(products, human_path)
        )
    elif human_path is not None:
        raise DataError(f"{folder}: has no {PRODUCTS}*.json, the products of {human_path.name}")
    else:
        products = [_bare_product(asin, row) for asin, row in attributes.items()]
        goals = list(_bare_goals(attributes))
    if not goals:
        raise DataError(f"{path}: holds no goal for a product that is there")
    random.Random(233).shuffle(goals)  # upstream's seed
    is_official = human_path is not None and len(goals) > _OFFICIAL_DEV
    return PublicShop(Catalogue(products, max_results=max_results), goals, is_official)


def _is_a(path: Path, kind: str) -> bool:
    return path.is_file() and path.name.startswith(kind)


def _only(folder: Path, kind: str) -> Path | None:
    found = sorted(folder.glob(f"{kind}*.json"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise DataError(f"{folder}: {names}: keep one of them there")
    return found[0] if found else None


# ------------------------------------------------------------------------------ products


def _products(path: Path, attributes: Mapping[str, _AttributesRow]) -> list[Product]:
    found: dict[str, Product] = {}
    for where, row in read_rows(path, _ProductRow):
        _require_unicode(where, row.model_dump())
        # as upstream: the first product with an id, and only valid ids
        if row.asin == "nan" or len(row.asin) > _MAX_ASIN or row.asin.lower() in found:
            continue
        if not row.asin.strip() or row.asin.split() != [row.asin]:
            raise DataError(f"{where}: asin: an id of one word")
        known = attributes.get(row.asin)
        found[row.asin.lower()] = _product(where, row, known.attributes if known else ())
    if not found:
        raise DataError(f"{path}: holds no product")
    return list(found.values())


def _product(where: str, row: _ProductRow, attributes: tuple[str, ...]) -> Product:
    points = row.small_description
    listed = points if isinstance(points, tuple) else (points,)
    price, tag = _price(where, row)
    return Product(
        asin=row.asin.lower(),
        record=ShopProduct(
            title=row.name,
            query=row.query.lower().strip(),
            product_category=row.product_category,
            # upstream's filler, which a goal may ask for
            attributes=attributes or ("DUMMY_ATTR",),
            bullet_points=tuple(point for point in listed if point),
            description=row.full_description or "",
        ),
        price=price,
        price_tag=tag,
        options=_options(where, row.customization_options),
    )


def _price(where: str, row: _ProductRow) -> tuple[float, str]:
    if not row.pricing:
        return _UNPRICED, f"{_UNPRICED:g}"
    parts = [re.sub(r"[^0-9.]", "", part) for part in row.pricing.split("$")[1:]]
    try:
        amounts = [float(Decimal(part)) for part in parts][:2]
    except InvalidOperation:
        amounts = []
    if not amounts or not all(map(math.isfinite, amounts)):
        raise DataError(f'{where}: pricing: write dollars, as "$12.99" or "$10 - $20", or nothing')
    price = random.Random(f"webshop price {row.asin}").uniform(amounts[0], amounts[-1])
    return (price if len(amounts) > 1 else amounts[0]), " to ".join(f"{one:g}" for one in amounts)


def _options(where: str, given: JsonValue) -> dict[str, tuple[str, ...]]:
    if not given:
        return {}
    if not isinstance(given, dict):
        raise DataError(f"{where}: customization_options: an object, name -> values")
    found: dict[str, tuple[str, ...]] = {}
    for name, contents in given.items():
        if contents is None:
            continue
        if not isinstance(contents, list):
            raise DataError(f"{where}: customization_options.{name}: a list of objects")
        values: list[str] = []
        for content in contents:
            value = content.get("value") if isinstance(content, dict) else None
            if not isinstance(value, str):
                raise DataError(
                    f'{where}: customization_options.{name}: objects with a text "value"'
                )
            # single spaces, as in `clicked_name`
            values.append(" ".join(value.strip().replace("/", " | ").lower().split()))
        found[name.lower()] = tuple(values)
    return found


def _require_unicode(where: str, value: object) -> None:
    """Refuse lone surrogates, which cannot be stored in a trajectory."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: a text with half of a surrogate pair ({error.reason})"
        ) from error


# ------------------------------------------------------------------------------ goals


def _human_goals(products: Sequence[Product], path: Path) -> Iterator[WordedGoal]:
    """Yield a goal for each person's instruction for a product in the catalogue."""
    rows = {asin.lower(): value for asin, value in read_mapping(path).items()}
    _require_unicode(str(path), rows)
    for product in products:
        asked = rows.get(product.asin, [])
        if not isinstance(asked, list):
            raise DataError(f"{path}, {product.asin}: a list of instructions")
        for number, value in enumerate(cast("list[object]", asked)):
            row = parsed_row(f"{path}, {product.asin}, instruction {number + 1}", value, _HumanRow)
            if row.instruction_attributes and row.instruction.strip():
                options = row.instruction_options
                yield _goal(
                    product,
                    (row.instruction.strip("."), row.instruction_attributes),
                    tuple(options.items()) if isinstance(options, dict) else options,
                    number,
                )


def _made_goals(
    products: Sequence[Product], rows: Mapping[str, _AttributesRow]
) -> Iterator[WordedGoal]:
    """Yield a goal for each combination of options of a product with an instruction."""
    by_asin = {asin.lower(): row for asin, row in rows.items()}
    for product in products:
        row = by_asin.get(product.asin)
        if row is None or not row.instruction or not row.instruction_attributes:
            continue
        names = sorted(name for name, values in product.options.items() if values)
        combinations = itertools.product(*(product.options[name] for name in names))
        for number, values in enumerate(itertools.islice(combinations, _MAX_COMBINATIONS)):
            options = tuple(zip(names, values, strict=True))
            written = ", and ".join(f"{name}: {value}" for name, value in options)
            words = f"{row.instruction}{f' with {written}' if written else ''}"
            yield _goal(product, (words, row.instruction_attributes), options, number)


def _goal(
    product: Product,
    asked: tuple[str, tuple[str, ...]],
    options: tuple[str | tuple[str, str], ...],
    number: int,
) -> WordedGoal:
    words, attributes = asked
    dice = random.Random(f"webshop goal {product.asin} {number}")
    limit = drawn_price_limit(dice, product.price)
    said = "" if limit is None else f", and price lower than {limit:.2f} dollars"
    record = product.record
    return WordedGoal(
        instruction=f"{words}{said}",
        goal=ShopGoal(
            attributes=attributes,
            options=options,
            price_upper=1_000_000.0 if limit is None else limit,
            title=record.title,
            query=record.query,
            product_category=record.product_category,
        ),
        asin=product.asin,
        chosen=_fitting_options(product, options),
        kind=f"{len(options)} options",
    )


def _fitting_options(product: Product, wanted: Sequence[str | tuple[str, str]]) -> dict[str, str]:
    """Return the product's options most similar to the wanted values."""
    offered = [(name, value) for name, values in product.options.items() for value in values]
    chosen: dict[str, str] = {}
    for option in wanted:
        text = option if isinstance(option, str) else option[1]
        free = [one for one in offered if one[0] not in chosen]
        if free:
            name, value = max(free, key=lambda one: _likeness(one[1], text))
            if _likeness(value, text):
                chosen[name] = value
    return chosen


def _likeness(value: str, wanted: str) -> int:
    if value == wanted:
        return 101
    return max(
        token_set_ratio(value, wanted), token_set_ratio(first_color(value), first_color(wanted))
    )


def _bare_product(asin: str, row: _AttributesRow) -> Product:
    """Return a product of which only the attributes are known; its id serves as title."""
    record = ShopProduct(
        title=asin.lower(), query="", product_category="", attributes=row.attributes
    )
    return Product(
        asin=asin.lower(), record=record, price=_UNPRICED, price_tag=f"{_UNPRICED:g}", options={}
    )


def _bare_goals(rows: Mapping[str, _AttributesRow]) -> Iterator[WordedGoal]:
    for asin, row in rows.items():
        if row.instruction and row.instruction_attributes:
            goal = ShopGoal(attributes=row.instruction_attributes)
            yield WordedGoal(
                instruction=row.instruction, goal=goal, asin=asin.lower(), chosen={}, kind="bare"
            )
