"""Pages of the shop, and what can be clicked on them."""

import pytest

from espalier.environments.tools import ToolError
from espalier.rewards.webshop import ShopProduct
from espalier_environments.shop.catalogue import Catalogue, Product
from espalier_environments.shop.visit import Visit


def product(asin, title, **options):
    record = ShopProduct(
        title=title,
        query="mug",
        product_category="kitchen",
        attributes=("heavy",),
        bullet_points=("holds water", "of clay"),
        description="a mug",
    )
    return Product(asin=asin, record=record, price=5.0, price_tag="5", options=options)


@pytest.fixture
def visit():
    products = [product(f"b{n}", "heavy mug", color=("red", "blue")) for n in range(5)]
    twice = product("b9", "odd jar", color=("red", "buy now"), band=("red", "description"))
    return Visit(Catalogue([*products, twice], max_results=50), page_size=2)


def refusal(action, *arguments):
    with pytest.raises(ToolError) as refused:
        action(*arguments)
    return str(refused.value)


def test_results_come_by_pages_in_the_order_of_the_catalogue(visit):
    assert visit.search("heavy mug") == "page 1 of 3 | heavy mug b0 5 | heavy mug b1 5"
    assert visit.click("Next >") == "page 2 of 3 | heavy mug b2 5 | heavy mug b3 5"
    assert visit.click("next") == "page 3 of 3 | heavy mug b4 5 | odd jar b9 5"
    assert "no such thing to click" in refusal(visit.click, "next")
    assert visit.click("< Prev").startswith("page 2 of 3")


def test_product_page_shows_options_and_leads_to_the_others(visit):
    visit.search("mug")
    assert visit.click("B1") == "heavy mug | price 5 | color : red , blue"
    assert visit.click("features") == "holds water | of clay"
    assert visit.click("back").startswith("heavy mug")
    assert visit.click("Description") == "a mug"
    assert "back to search" in refusal(visit.click, "red")
    visit.click("back")
    assert visit.click("attributes") == "heavy | mug | kitchen"
    visit.click("back")
    assert visit.click("reviews") == "nothing is written here"


def test_last_value_of_an_option_is_bought(visit):
    visit.search("mug")
    visit.click("b0")
    assert visit.click("red") == "chosen : color red"
    assert visit.click("BLUE") == "chosen : color blue"
    assert visit.buy().options == {"color": "blue"}


def test_options_are_forgotten_behind_the_results(visit):
    visit.search("mug")
    visit.click("b0")
    visit.click("red")
    visit.click("back")
    visit.click("b0")
    assert visit.buy().options == {}


def test_options_stay_over_the_pages_of_a_product(visit):
    visit.search("mug")
    visit.click("b0")
    visit.click("red")
    visit.click("features")
    visit.click("back")
    assert visit.buy().options == {"color": "red"}


def test_buttons_go_before_options_of_their_name(visit):
    visit.search("odd jar")
    visit.click("b9")
    assert "call buy" in refusal(visit.click, "buy now")
    assert visit.click("description") == "a mug"
    visit.click("back")
    # of two options with one value the later is chosen
    assert visit.click("red") == "chosen : band red"


def test_only_an_open_product_can_be_bought(visit):
    assert "open the page" in refusal(visit.buy)
    visit.search("mug")
    assert "open the page" in refusal(visit.buy)
    visit.click("b0")
    visit.click("features")
    assert "open the page" in refusal(visit.buy)
    visit.click("back")
    assert visit.buy().product.asin == "b0"


def test_only_listed_products_can_be_opened(visit):
    assert "before a search" in refusal(visit.click, "b0")
    visit.search("mug")
    assert "b0 , b1 , next" in refusal(visit.click, "b4")
    assert visit.click("back to search") == "search for a product"
    assert "before a search" in refusal(visit.click, "b0")


def test_search_without_results_or_words(visit):
    assert visit.search("zebra") == "no results"
    assert visit.search("!?") == "no results"
    assert "empty" in refusal(visit.search, "  ")
    assert "longer than 1000" in refusal(visit.search, "a " * 600)
    assert "no such thing" in refusal(visit.click, "next")
