"""A visit to the shop: the current page, what can be clicked there, and the purchase.

Pages and buttons are WebShop's: pages of results, a product with its options, pages with its
description, features and attributes, `back`, `next`, `back to search`. Going back from a product to
the results discards the chosen options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from espalier.environments.tools import ToolError
from espalier_environments.shop.catalogue import Catalogue, Product

_SHOWN_TARGETS = 30
"""Most names listed in an error."""
_MAX_QUERY_CHARACTERS = 1000
_SubPage = Literal["description", "features", "attributes", "reviews"]
_SUB_PAGES: tuple[_SubPage, ...] = ("description", "features", "attributes", "reviews")


def clicked_name(target: str) -> str:
    """Return the normalized name by which clicks are compared."""
    return " ".join(target.lower().split()).strip("<> ")


class Purchase(NamedTuple):
    """A bought product with its options."""

    product: Product
    options: dict[str, str]
    """Name -> chosen value."""


class Visit:
    """One episode's state in the shop."""

    def __init__(self, catalogue: Catalogue, *, page_size: int) -> None:
        self._catalogue = catalogue
        self._page_size = page_size
        self._results: Sequence[Product] | None = None
        """None before a search, and after `back to search`."""
        self._page = 1
        self._product: Product | None = None
        """The product whose pages are open; None on a page of results."""
        self._on_sub_page = False
        self._options: dict[str, str] = {}

    # ------------------------------------------------------------------------------ actions

    def search(self, query: str) -> str:
        """Search, and return the first page of results."""
        if not query.strip():
            raise ToolError("the query is empty")
        if len(query) > _MAX_QUERY_CHARACTERS:
            raise ToolError(f"the query is longer than {_MAX_QUERY_CHARACTERS} characters")
        return self._show_results(self._catalogue.search(query), page=1)

    def click(self, target: str) -> str:
        """Click on a product, option or button of the page, and return the new page.

        A button takes precedence over an option with the same name, as upstream.
        """
        name = clicked_name(target)
        if name == "buy now":
            raise ToolError("call buy to buy the product that is open")
        if name == "back to search":
            self._results, self._product = None, None
            return "search for a product"
        if self._product is not None:
            return self._click_on_product(name, self._product)
        if self._results is None:
            raise ToolError("there is nothing to click before a search")
        return self._click_on_results(name, self._results)

    def buy(self) -> Purchase:
        """Buy the product whose page is open, with the chosen options."""
        if self._product is None or self._on_sub_page:
            raise ToolError("open the page of a product first")
        return Purchase(self._product, dict(self._options))

    # ------------------------------------------------------------------------------ pages

    def _click_on_results(self, name: str, results: Sequence[Product]) -> str:
        if name == "next" and self._page < self._num_pages(results):
            return self._show_results(results, page=self._page + 1)
        if name in ("back", "prev") and self._page > 1:
            return self._show_results(results, page=self._page - 1)
        listed = self._listed(results)
        for product in listed:
            if name == product.asin:
                self._product, self._on_sub_page, self._options = product, False, {}
                return product_page(product)
        raise _unknown([product.asin for product in listed], "next", "back", "back to search")

    def _click_on_product(self, name: str, product: Product) -> str:
        if name in ("back", "prev"):
            if self._on_sub_page:
                self._on_sub_page = False
                return product_page(product)
            return self._show_results(self._results or (), page=self._page)
        if self._on_sub_page:
            raise _unknown([], "back", "back to search")
        for page in _SUB_PAGES:
            if name == page:
                self._on_sub_page = True
                return sub_page(product, page)
        # if two options share a value, the later option is chosen, as upstream
        for option, values in reversed(list(product.options.items())):
            if name in values:
                self._options[option] = name
                chosen = " , ".join(f"{key} {value}" for key, value in self._options.items())
                return f"chosen : {chosen}"
        values = [value for group in product.options.values() for value in group]
        raise _unknown(values, *_SUB_PAGES, "back", "back to search")

    def _show_results(self, results: Sequence[Product], *, page: int) -> str:
        self._results, self._page = results, page
        self._product, self._on_sub_page, self._options = None, False, {}
        if not results:
            return "no results"
        return results_page(self._listed(results), page, self._num_pages(results))

    def _num_pages(self, results: Sequence[Product]) -> int:
        return -(-len(results) // self._page_size)

    def _listed(self, results: Sequence[Product]) -> Sequence[Product]:
        end = self._page * self._page_size
        return results[end - self._page_size : end]


def results_page(listed: Sequence[Product], page: int, num_pages: int) -> str:
    """Return the text of a page of results."""
    shown = " | ".join(
        # id right after the title: a small policy copies what follows the title that it wants
        f"{product.record.title} {product.asin} {product.price_tag}"
        for product in listed
    )
    return f"page {page} of {num_pages} | {shown}"


def product_page(product: Product) -> str:
    """Return a product's title, price and options."""
    options = (f"{name} : {' , '.join(values)}" for name, values in product.options.items())
    return " | ".join((product.record.title, f"price {product.price_tag}", *options))


def sub_page(product: Product, page: _SubPage) -> str:
    """Return the text of a product's further page; there are no reviews."""
    record = product.record
    written = {
        "description": record.description,
        "features": " | ".join(record.bullet_points),
        "attributes": " | ".join((*record.attributes, record.query, record.product_category)),
        "reviews": "",
    }[page]
    return written.strip() or "nothing is written here"


def _unknown(names: Sequence[str], *buttons: str) -> ToolError:
    shown = [*names[:_SHOWN_TARGETS], *buttons]
    return ToolError(f"no such thing to click ; there are {' , '.join(shown)}")
