"""How a teacher shops: search by words, open what looks right, choose options, buy; or go back."""

from __future__ import annotations

from collections.abc import Sequence

from espalier.environments.shop.catalogue import Catalogue, Product
from espalier.environments.shop.goals import goal_of, gold_purchase, score_of
from espalier.environments.shop.visit import Purchase
from espalier.environments.teaching import GaveUp, Observed, Script
from espalier.records import Task, ToolCalls
from espalier.rewards import ShopGoal

_MAX_PAGES = 5
_THOUGHT_WORDS = 3
"""A title of the made catalogue."""


def search_for(query: str) -> ToolCalls:
    """A search."""
    return ToolCalls.one("search", {"query": query}, "search")


def click_on(target: str, thought: str) -> ToolCalls:
    """A click."""
    return ToolCalls.one("click", {"target": target}, thought)


def open_product(product: Product) -> ToolCalls:
    """A click on a product's id, behind a thought of the first words of its title and the id.

    A small policy copies what follows, in the results, the words that it has just thought, and
    then says it again in the click. With the title alone in the thought it copied no id after 900
    steps of reading; with one thought for all products after 600.
    """
    words = product.record.title.lower().split()[:_THOUGHT_WORDS]
    return click_on(product.asin, " ".join((*words, product.asin)))


def shop_for(task: Task, catalogue: Catalogue) -> Script:
    """Opens the products of the results that look right, in order, and buys the first that is.

    What looks right is seen in the results: the goal's kind, the attributes that a title spells,
    the price. Whether it has the options, and an attribute that no title spells, is seen on its
    own pages.

    Raises:
        GaveUp: no page of results has it.
    """
    goal = goal_of(task)
    _, gold_options = gold_purchase(task)
    shown = yield search_for(_query(task, goal))
    for _ in range(_MAX_PAGES):
        for product in _listed(shown, catalogue):
            if not _looks_right(product, goal):
                continue
            yield open_product(product)
            chosen = _chosen(product, list(gold_options.values()))
            if score_of(Purchase(product, chosen), goal).score == 1:
                yield from _bought(chosen)
                return
            yield click_on("back", "back")
        shown = yield click_on("next", "next")
        if not shown.succeeded:
            break
    raise GaveUp("not_found")


def gold_script(task: Task) -> Script:
    """Finds the product that the goal was made from, by its title or id; buys it with its options.

    Raises:
        GaveUp: no page of results has it.
    """
    asin, options = gold_purchase(task)
    title = goal_of(task).title or asin
    for query in (title, " ".join((title, *options.values())), task.question):
        shown = yield search_for(query)
        while shown.succeeded and asin not in shown.split():
            shown = yield click_on("next", "next")
        if shown.succeeded:
            yield click_on(asin, "item")
            yield from _bought(options)
            return
    raise GaveUp("not_found")


def _bought(chosen: dict[str, str]) -> Script:
    for name, value in chosen.items():
        yield click_on(value, name)
    yield ToolCalls.one("buy", {}, "buy")


def _query(task: Task, goal: ShopGoal) -> str:
    """The goal's attributes and its kind, as an instruction says them."""
    return " ".join((*goal.attributes, goal.query)).strip() or task.question


def _listed(shown: Observed, catalogue: Catalogue) -> Sequence[Product]:
    """The products of a page of results, in its order."""
    found = map(catalogue.get, shown.split())
    return [product for product in found if product is not None]


def _looks_right(product: Product, goal: ShopGoal) -> bool:
    title = product.record.title.lower()
    spelled = [attribute for attribute in goal.attributes if attribute in (goal.title or "")]
    affordable = goal.price_upper is None or product.price <= goal.price_upper
    return (
        affordable
        and product.record.query == goal.query
        and all(attribute in title for attribute in spelled)
    )


def _chosen(product: Product, wanted: Sequence[str]) -> dict[str, str]:
    """The product's options with a wanted value."""
    return {
        name: next(value for value in wanted if value in values)
        for name, values in product.options.items()
        if set(values) & set(wanted)
    }
