"""Variations of a failed goal: similar requirements for another product, or others for the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

from espalier.environments.evolution import SOURCE
from espalier.records import Task
from espalier_environments.shop.catalogue import FILLER, Product
from espalier_environments.shop.goals import goal_of, goal_task, gold_purchase
from espalier_environments.shop.made_catalogue import goal_in_words

_OTHER_PRODUCT_SHARE = 0.7


class ShopVariations:
    """Varies goals of one catalogue."""

    def __init__(self, products: Sequence[Product], *, max_options: int, family: str) -> None:
        """Store the products that goals are made of.

        Args:
            products: products without a dev or held-out goal.
            max_options: most options that a goal asks for.
            family: name of the family in tasks.
        """
        self._products = [one for one in products if one.record.query and _attributes(one)]
        self._by_asin = {product.asin: product for product in self._products}
        self._max_options = max_options
        self._family = family

    def varied(self, failed: Task, dice: random.Random) -> Task | None:
        """Return another training goal; None if the product lacks what it would ask for."""
        asin, _ = gold_purchase(failed)
        goal, meant = goal_of(failed), self._by_asin.get(asin)
        if meant is None:
            return None
        hidden = len(set(goal.attributes) & set(_hidden(meant)))
        titled, options = len(goal.attributes) - hidden, len(goal.options)
        if dice.random() < _OTHER_PRODUCT_SHARE:
            return self._goal(dice, dice.choice(self._products), titled, hidden, options)
        if options:
            options = max(1, options + dice.choice((-1, 0, 1)))
        return self._goal(dice, meant, titled, dice.randint(0, 1), options)

    def _goal(
        self, dice: random.Random, product: Product, titled: int, hidden: int, options: int
    ) -> Task | None:
        """Return a goal with that many title attributes, hidden attributes and options."""
        beside = _hidden(product)
        spelled = [one for one in _attributes(product) if one not in beside]
        most = min(self._max_options, len(product.options))
        if len(spelled) < titled or len(beside) < hidden or options > most or not titled + hidden:
            return None
        asked = [*spelled[:titled], *dice.sample(beside, hidden)]
        names = sorted(dice.sample(list(product.options), options))
        chosen = {name: dice.choice(product.options[name]) for name in names}
        wanted = goal_in_words(dice, product, chosen, asked)
        return goal_task(wanted, family=self._family, split="train", source=SOURCE)


def _attributes(product: Product) -> list[str]:
    return [one for one in product.record.attributes if one != FILLER]


def _hidden(product: Product) -> list[str]:
    """Return the attributes that the title does not contain."""
    return [one for one in _attributes(product) if one not in product.record.title.lower()]
