"""Products of a shop, and the search over them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from espalier.environments.text_index import TextIndex
from espalier.records.knowledge import Document
from espalier.rewards.webshop import ShopProduct

FILLER = "DUMMY_ATTR"
"""Upstream's attribute for a product without attributes."""
_CACHED_SEARCHES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product: what its pages show and what the score uses."""

    asin: str
    """The product's id in lower case, as results show it."""
    record: ShopProduct
    price: float
    """Price of a purchase, in dollars."""
    price_tag: str
    """The price as its pages show it."""
    options: Mapping[str, Sequence[str]]
    """Name -> values, in lower case; a purchase has at most one value per option."""

    @property
    def document(self) -> Document:
        """What the search indexes: title, description, first bullet point and options."""
        options = " , ".join(f"{name} {' '.join(values)}" for name, values in self.options.items())
        lines = (self.record.description, *self.record.bullet_points[:1], options)
        return Document(self.asin, self.record.title, lines, "train")


class Catalogue:
    """All products of a shop."""

    def __init__(self, products: Sequence[Product], *, max_results: int) -> None:
        """Index the products, whose ids must be distinct.

        Args:
            products: at least one product.
            max_results: most products that a search returns.
        """
        self.products = tuple(products)
        self._by_asin = {product.asin: product for product in products}
        assert len(self._by_asin) == len(products) > 0, "ids of products are distinct"
        self._index = TextIndex.build([product.document for product in products])
        self._max_results = max_results
        self._found = lru_cache(maxsize=_CACHED_SEARCHES)(self._ranked)

    def get(self, asin: str) -> Product | None:
        """Return the product with that id; None if there is none."""
        return self._by_asin.get(asin)

    def search(self, query: str) -> tuple[Product, ...]:
        """Return the best products by BM25; ties are in the order of the catalogue."""
        return self._found(query)

    def _ranked(self, query: str) -> tuple[Product, ...]:
        ranked = self._index.rank(query, self._max_results)
        return tuple(self.products[entry.place] for entry in ranked)


def drawn_price_limit(dice: random.Random, price: float) -> float | None:
    """Return a price limit above `price`; None where upstream's goals have no limit.

    It is the larger of two of the next four multiples of 10 dollars below 1,000
    (`get_human_goals`).
    """
    above = [10.0 * tens for tens in range(1, 100) if 10.0 * tens > price][:4]
    return max(dice.sample(above, 2)) if len(above) >= 2 else None
