"""A teacher that shops: it searches, opens promising products, chooses options, and buys."""

from __future__ import annotations

from espalier.environments.teaching import GaveUp, Script
from espalier.records import Task, ToolCalls
from espalier.rewards.webshop import ShopGoal
from espalier_environments.shop.catalogue import Catalogue, Product
from espalier_environments.shop.goals import goal_of, gold_purchase, score_of
from espalier_environments.shop.visit import Purchase

_MAX_PAGES = 5
_THOUGHT_WORDS = 3
"""Length of a title in the generated catalogue."""


def search_for(query: str) -> ToolCalls:
    """Return a search."""
    return ToolCalls.one("search", {"query": query}, "search")


def click_on(target: str, thought: str) -> ToolCalls:
    """Return a click."""
    return ToolCalls.one("click", {"target": target}, thought)


def open_product(product: Product) -> ToolCalls:
    """Return a click on a product's id, after a thought of its title's first words and the id.

    A small policy finds, in the results, the words that it has just thought, copies what follows
    them, and repeats it in the click. With only the title in the thought it copied no id after 900
    steps of reading; with one thought for all products, none after 600.
    """
    words = product.record.title.lower().split()[:_THOUGHT_WORDS]
    return click_on(product.asin, " ".join((*words, product.asin)))


def shop_for(task: Task, catalogue: Catalogue) -> Script:
    """Open the promising products among the results, in order, and buy the first that fits.

    The results show whether a product is promising: the goal's kind, the attributes in the title,
    the price. Only its own pages show its options, and attributes that are not in the title.

    Raises:
        GaveUp: no page of results has the product.
    """
    goal = goal_of(task)
    _, gold_options = gold_purchase(task)
    wanted = list(gold_options.values())
    query = " ".join((*goal.attributes, goal.query)).strip()  # as in an instruction
    shown = yield search_for(query or task.question)
    for _ in range(_MAX_PAGES):
        for product in map(catalogue.get, shown.split()):
            if product is None or not _looks_right(product, goal):
                continue
            yield open_product(product)
            chosen = {
                name: next(value for value in wanted if value in values)
                for name, values in product.options.items()
                if set(values) & set(wanted)
            }
            if score_of(Purchase(product, chosen), goal).score == 1:
                yield from _bought(chosen)
                return
            yield click_on("back", "back")
        shown = yield click_on("next", "next")
        if not shown.succeeded:
            break
    raise GaveUp("not_found")


def gold_script(task: Task) -> Script:
    """Find the product that the goal was made from, by title or id, and buy it with its options.

    Raises:
        GaveUp: no page of results has the product.
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


def _looks_right(product: Product, goal: ShopGoal) -> bool:
    title = product.record.title.lower()
    spelled = [attribute for attribute in goal.attributes if attribute in (goal.title or "")]
    affordable = goal.price_upper is None or product.price <= goal.price_upper
    return (
        affordable
        and product.record.query == goal.query
        and all(attribute in title for attribute in spelled)
    )
