"""The tools of a shop: `search`, `click` and `buy`."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import Field

from espalier.environments.tools import Tool, ToolError
from espalier.rewards.webshop import ShopGoal
from espalier_environments.shop.catalogue import Catalogue
from espalier_environments.shop.goals import score_of, written_purchase
from espalier_environments.shop.visit import Visit

BUY = "buy"
_Query = Annotated[str, Field(description="words that the product's pages have")]
_Target = Annotated[
    str,
    Field(
        description="the id of a product in the results, the value of an option on its page, or a "
        "button: next, back, back to search, description, features, attributes"
    ),
]


class ScoredVisit(Visit):
    """A visit that ends with a purchase and its score."""

    def __init__(self, catalogue: Catalogue, goal: ShopGoal, *, page_size: int) -> None:
        super().__init__(catalogue, page_size=page_size)
        self._goal = goal
        self.score = 0.0
        """Score of the purchase; 0 without one."""
        self.is_over = False
        """Whether something was bought."""

    def buy_scored(self) -> str:
        """Buy the open product and return the purchase as the answer."""
        purchase = self.buy()
        self.score = score_of(purchase, self._goal).score
        self.is_over = True
        return written_purchase(purchase, self.score)


def tools_of(visit: ScoredVisit) -> tuple[Tool, ...]:
    """Return the tools of one episode."""
    search, click, buy = shop_tools()
    return search.over(visit.search), click.over(visit.click), buy.over(visit.buy_scored)


@cache
def shop_tools() -> tuple[Tool, ...]:
    """Return the tools' schemas, bound to no shop."""

    def search(query: _Query) -> str:
        """Search the shop; shows a page of products with their id, title and price."""
        raise _closed(query)

    def click(target: _Target) -> str:
        """Click on something that the page shows."""
        raise _closed(target)

    def buy() -> str:
        """Buy the product whose page is open, with the options chosen; ends the visit."""
        raise _closed()

    return Tool(search), Tool(click), Tool(buy)


def _closed(*_arguments: str) -> ToolError:
    return ToolError("no shop is open")
