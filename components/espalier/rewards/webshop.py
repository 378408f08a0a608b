"""WebShop's score of a purchase (Yao et al. 2022, arXiv:2207.01206, sec. 3.1).

    score = type factor x (attributes matched + options matched + price ok) / (their number)

`web_agent_site/engine/goal.py` of princeton-nlp/WebShop at 64fa2a5, function `get_reward`, quirks
included: an option counts if its value was chosen under any name; an attribute counts if it occurs
in a title, bullet points or description, also inside a longer word; a title that shares no noun
with the goal's gives 0, whatever else matches.

One thing differs. Upstream takes the nouns of a title from a spaCy model (`en_core_web_sm`), which
no package index carries; here (`title_nouns`) they are the words that are neither function words,
numbers and sizes nor adjectives by a list or their ending.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

CATEGORY_SEPARATOR = "\u203a"
_LEAST_RATIO = 85
"""Threshold of `token_set_ratio`; a match lies above it."""
_CACHED_TEXTS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopProduct:
    """The fields of a product that the score reads."""

    title: str
    query: str
    """The search that found it: the kind of product, lower case."""
    product_category: str
    """Path of categories, the widest first, joined by `CATEGORY_SEPARATOR`."""
    attributes: tuple[str, ...]
    bullet_points: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopGoal:
    """The product that is to be bought."""

    attributes: tuple[str, ...]
    """Wanted attributes; at least one."""
    options: tuple[str | tuple[str, str], ...] = ()
    """Values, or pairs of name and value, which match less strictly, as upstream."""
    price_upper: float | None = None
    """Upper bound of the price; None: no price term."""
    title: str | None = None
    """Title of the goal's product; None: only its attributes are known, and any type counts."""
    query: str = ""
    product_category: str = ""


class ShopScore(NamedTuple):
    """The score, 0-1, and its parts."""

    score: float
    type_factor: float
    """0, 0.1, 0.5 or 1."""
    attributes: int
    """Number of the goal's attributes that match."""
    options: int
    """Number of the goal's options that match."""
    price_ok: bool | None
    """None if the goal has no price."""


def webshop_score(
    product: ShopProduct, goal: ShopGoal, *, price: float, options: Iterable[str]
) -> ShopScore:
    """Return the score of buying `product` at `price` with the values of `options` chosen.

    Raises:
        ValueError: the goal has no attribute; upstream leaves such goals out.
    """
    if not goal.attributes:
        raise ValueError("a goal without attributes has no score")
    attributes = matched_attributes(product, goal.attributes)
    chosen = matched_options(options, goal.options)
    price_ok = None if goal.price_upper is None else price <= goal.price_upper
    count = len(goal.attributes) + len(goal.options) + (price_ok is not None)
    factor = 1.0 if goal.title is None else type_factor(product, goal, goal.title)
    score = factor * ((attributes + chosen + bool(price_ok)) / count)
    return ShopScore(score, factor, attributes, chosen, price_ok)


def type_factor(product: ShopProduct, goal: ShopGoal, goal_title: str) -> float:
    """1, 0.5, 0.1 or 0: whether the product is of the goal's kind (`get_type_reward`)."""
    wanted = title_nouns(goal_title)
    # upstream's value for a goal's title without nouns
    shared = len(title_nouns(product.title) & wanted) / len(wanted) if wanted else 0.2
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    same_path = _categories(product.product_category) & _categories(goal.product_category)
    matches = product.query == goal.query or len(same_path) >= 2 or shared > 0.2
    return 1.0 if matches else 0.5


def matched_attributes(product: ShopProduct, wanted: Sequence[str]) -> int:
    """Return how many attributes of a goal the product has (`get_attribute_reward`)."""
    texts = (product.title, " ".join(product.bullet_points), product.description)
    lowered = [text.lower() for text in texts]
    return sum(
        any(token_set_ratio(has, attribute) > _LEAST_RATIO for has in product.attributes)
        or any(attribute in text for text in lowered)
        for attribute in wanted
    )


def matched_options(chosen: Iterable[str], wanted: Iterable[str | tuple[str, str]]) -> int:
    """Return how many options of a goal were chosen (`get_option_reward`)."""
    folded = [first_color(value) for value in chosen]
    matched = 0
    for option in wanted:
        if isinstance(option, str):
            text = first_color(option)
        else:
            # upstream looks for a color in the parts of a pair, else compares its Python text
            text = next((color for color in _COLORS if color in option), str(option))
        matched += any(token_set_ratio(value, text) > _LEAST_RATIO for value in folded)
    return matched


def first_color(value: str) -> str:
    """Return the first of upstream's colors that is in `value`, in their order; or `value`."""
    return next((color for color in _COLORS if color in value), value)


# ---------------------------------------------------------------------------- fuzzy comparison


@lru_cache(maxsize=_CACHED_TEXTS)
def token_set_ratio(one: str, other: str) -> int:
    """Return the similarity of two texts as word sets, 0-100 (thefuzz 0.19.0, no Levenshtein)."""
    words, others = _folded_words(one), _folded_words(other)
    if not words or not others:
        return 0
    shared = " ".join(sorted(words & others))
    whole = f"{shared} {' '.join(sorted(words - others))}".strip()
    other_whole = f"{shared} {' '.join(sorted(others - words))}".strip()
    return max(_ratio(shared, whole), _ratio(shared, other_whole), _ratio(whole, other_whole))


def _ratio(one: str, other: str) -> int:
    if one == other:
        return 100
    if not one or not other:
        return 0
    return round(100 * SequenceMatcher(None, one, other).ratio())


_DROPPED = dict.fromkeys(range(128, 256))
"""Characters that thefuzz removes before it compares: the second half of Latin-1."""


def _folded_words(text: str) -> frozenset[str]:
    return frozenset(re.sub(r"\W", " ", text.translate(_DROPPED)).lower().split())


# ---------------------------------------------------------------------------- nouns of a title


def _categories(path: str) -> set[str]:
    return {part.strip() for part in path.split(CATEGORY_SEPARATOR)}


@lru_cache(maxsize=_CACHED_TEXTS)
def title_nouns(title: str) -> frozenset[str]:
    """Return the words of a title, lower case, that count as nouns."""
    return frozenset(word for word in _WORD.findall(title.lower()) if _is_noun(word))


def _is_noun(word: str) -> bool:
    if len(word) < 2 or not word.isalpha() or word in _NO_NOUNS:
        return False
    return not word.endswith(_ADJECTIVE_ENDINGS)


_WORD = re.compile(r"[^\W_]+")
_ADJECTIVE_ENDINGS = ("able", "ible", "ful", "less", "ous", "proof", "resistant", "ly")
_FUNCTION_WORDS = """
a an and any are as at be but by can for from has have in into is it its more most no non not of
off on one or other our out over per plus so than that the their these this to up very we while
with without you your yours all also each every
"""
_SIZES_AND_NUMBERS = """
small medium large big little mini long short tall wide narrow slim thick thin deep high low
single double triple two three four five six seven eight nine ten first second half full extra
"""
_ADJECTIVES = """
new old modern classic vintage retro antique rustic natural organic fresh pure raw real fake soft
hard hot cold cool warm dry wet heavy light lightweight strong stretchy sturdy firm smart easy
quick fast slow safe clean clear sharp smooth rough flat round square folding best great good fine
perfect ideal super ultra premium professional portable wireless digital electric electronic
automatic manual free vegan casual formal elegant cute sexy outdoor indoor daily personal
universal compatible multi dual quiet gentle woven knitted padded insulated recycled handmade
bright scented unscented rechargeable black white red blue green yellow purple pink gray grey
brown beige navy teal
"""
"""Adjectives that are frequent in titles, and colors that are no product."""
_NO_NOUNS = frozenset(f"{_FUNCTION_WORDS} {_SIZES_AND_NUMBERS} {_ADJECTIVES}".split())
_COLORS = (
    "alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black", "blue",
    "blush", "bordeaux", "bronze", "brown", "burgundy", "camel", "camo", "caramel", "champagne",
    "charcoal", "cheetah", "chestnut", "chocolate", "christmas", "coffee", "cognac", "copper",
    "coral", "cranberry", "cream", "crystal", "dark", "denim", "eggplant", "elephant", "espresso",
    "fuchsia", "gold", "granite", "grape", "graphite", "grass", "gray", "green", "grey", "heather",
    "indigo", "ivory", "ivy", "khaki", "lavender", "lemon", "leopard", "light", "lilac", "lime",
    "magenta", "maroon", "mauve", "merlot", "midnight", "mint", "mocha", "multicolor", "mushroom",
    "mustard", "natural", "navy", "nude", "olive", "orange", "peach", "pewter", "pink", "plum",
    "purple", "rainbow", "red", "rose", "royal", "rust", "sand", "sapphire", "seashell", "silver",
    "skull", "slate", "steel", "stone", "stonewash", "sunflower", "tan", "taupe", "teal", "tiger",
    "turquoise", "violet", "walnut", "wheat", "white", "wine", "yellow",
)  # fmt: skip
"""`COLOR_SET` of `web_agent_site/engine/normalize.py`, in its order."""
