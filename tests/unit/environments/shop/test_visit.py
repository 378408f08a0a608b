"""Pages of the shop, and what can be clicked on them."""

import pytest

from espalier.environments.tools import ToolError
from espalier.rewards.webshop import ShopProduct
from espalier_environments.shop.catalogue import Catalogue, Product
from espalier_environments.shop.visit import Visit


def product(asin, title, **options):
    record = ShopProduct(
        title=title, query="mug", product_category="kitchen", attributes=("heavy",),
        bullet_points=("holds water", "of clay"), description="a mug",
    )  # fmt: skip
    return Product(asin=asin, record=record, price=5.0, price_tag="5", options=options)


@pytest.fixture
def visit():
    products = [product(f"b{n}", "heavy mug", color=("red", "blue")) for n in range(5)]
    return Visit(Catalogue([*products, product("b9", "odd jar")], max_results=50), page_size=2)


def refusal(action, *arguments):
    with pytest.raises(ToolError) as refused:
        action(*arguments)
    return str(refused.value)


def test_results_come_by_pages_in_the_order_of_the_catalogue(visit):
    assert "before a search" in refusal(visit.click, "b0")
    assert visit.search("zebra") == visit.search("!?") == "no results"
    assert "empty" in refusal(visit.search, "  ")
    assert "longer than 1000" in refusal(visit.search, "a " * 600)
    assert visit.search("heavy mug") == "page 1 of 3 | heavy mug b0 5 | heavy mug b1 5"
    assert "b0 , b1 , next" in refusal(visit.click, "b4")
    assert visit.click("Next >") == "page 2 of 3 | heavy mug b2 5 | heavy mug b3 5"
    assert visit.click("next") == "page 3 of 3 | heavy mug b4 5 | odd jar b9 5"
    assert "no such thing to click" in refusal(visit.click, "next")
    assert visit.click("< Prev").startswith("page 2 of 3")
    assert visit.click("back to search") == "search for a product"
    assert "before a search" in refusal(visit.click, "b0")


def test_product_page_shows_options_and_leads_to_the_others(visit):
    assert "open the page" in refusal(visit.buy)
    visit.search("mug")
    assert visit.click("B1") == "heavy mug | price 5 | color : red , blue"
    for target, page in (
        ("features", "holds water | of clay"), ("Description", "a mug"),
        ("attributes", "heavy | mug | kitchen"), ("reviews", "nothing is written here"),
    ):  # fmt: skip
        assert visit.click(target) == page
        assert "back to search" in refusal(visit.click, "red")
        assert "open the page" in refusal(visit.buy)
        assert visit.click("back").startswith("heavy mug")
    assert visit.buy().product.asin == "b1"


@pytest.mark.parametrize(
    ("clicks", "options"),
    [
        (["red", "BLUE"], {"color": "blue"}),  # the last value
        (["red", "features", "back"], {"color": "red"}),  # it stays over the product's pages
        (["red", "back", "b0"], {}),  # and is forgotten behind the results
    ],
)
def test_last_value_of_an_option_is_bought(visit, clicks, options):
    visit.search("mug")
    for target in ("b0", *clicks):
        said = visit.click(target)
        assert target != "BLUE" or said == "chosen : color blue"
    assert visit.buy().options == options
