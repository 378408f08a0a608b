"""The site itself: its pages, its forms, and what it refuses."""

import copy
import json

import pytest

from espalier.config import SplitsConfig
from espalier_environments.web.catalogue import made_site, names_of_split
from espalier_environments.web.config import SiteConfig
from espalier_environments.web.document import parse_html
from espalier_environments.web.website import MAX_TEXT, Website

SPLITS = SplitsConfig()


@pytest.fixture
def site():
    return Website(made_site(SiteConfig(), 0, "train", SPLITS))


def links_of(page):
    return [one.attributes["href"] for one in parse_html(page).walk() if "href" in one.attributes]


def all_pages(site):
    """Addresses that lead somewhere, found by following every link."""
    seen, ahead = {"/"}, ["/"]
    while ahead:
        reply = site.reply("GET", ahead.pop())
        assert reply.status == 200, reply.url
        for link in links_of(reply.html):
            if link not in seen:
                seen.add(link)
                ahead.append(link)
    return seen


def test_every_link_leads_to_a_page_and_changes_nothing(site):
    before = site.state()
    pages = all_pages(site)
    assert len({page.partition("?")[0] for page in pages}) >= 60
    assert site.state() == before


def test_equal_seeds_make_equal_sites_and_others_do_not():
    made = [made_site(SiteConfig(), number, "train", SPLITS) for number in (0, 0, 1)]
    assert made[0] == made[1] != made[2]
    assert made_site(SiteConfig(seed=1), 0, "train", SPLITS) != made[0]


@pytest.mark.parametrize("table", ["products", "threads", "issues"])
def test_a_name_belongs_to_one_split(table):
    names = [set(names_of_split(table, s, SPLITS)) for s in ("train", "dev", "heldout")]
    assert all(names)
    assert not names[0] & names[1]
    assert not (names[0] | names[1]) & names[2]


@pytest.mark.parametrize(
    ("path", "form", "table", "field", "value"),
    [
        (
            "/issues/2/edit",
            {"assignee": "nobody", "status": "closed"},
            "issues",
            "status",
            "closed",
        ),
        ("/forum/3/comment", {"text": " a  b\n"}, "threads", "comments", None),
        ("/shop/1/review", {"stars": "5"}, "products", "reviews", None),
        ("/shop/1/cart", {"quantity": "2"}, "cart", None, [{"product": 1, "quantity": 2}]),
        ("/forum/new", {"title": "hello"}, "threads", "name", "hello"),
        ("/issues/new", {"title": "it is slow", "label": "bug"}, "issues", "name", "it is slow"),
    ],
)
def test_a_form_changes_one_table_alone(site, path, form, table, field, value):
    before = copy.deepcopy(site.records)
    assert site.reply("POST", path, form).status == 200
    changed = {name for name in before if before[name] != site.records[name]}
    assert changed == {table}
    if value is not None and field is None:
        assert site.records[table] == value
    elif value is not None:
        assert value in [record[field] for record in site.records[table]]


def test_an_order_takes_what_there_is_and_no_more(site):
    stock = site.records["products"][0]["stock"]
    for _ in range(stock):
        site.reply("POST", "/shop/1/cart", {"quantity": "1"})
    assert site.reply("POST", "/cart/order").url == "/orders/1"
    assert site.records["products"][0]["stock"] == 0
    assert site.reply("POST", "/cart/order").status == 400
    assert "add to cart" not in site.reply("GET", "/shop/1").html
    assert site.reply("POST", "/shop/1/cart", {"quantity": "1"}).status == 400


def test_lists_are_narrowed_and_paged(site):
    site.records["issues"][0]["status"] = "closed"
    names = {one["name"] for one in site.records["issues"] if one["status"] == "closed"}
    page = parse_html(site.reply("GET", "/issues?status=closed").html)
    shown = {one.text for one in page.walk() if one.tag == "a"}
    assert names <= shown
    assert "next" in site.reply("GET", "/issues").html
    second = site.reply("GET", "/issues?page=2").html
    assert "previous" in second
    assert "next" not in second.replace("/next", "")
    assert site.reply("GET", "/issues?page=99999999").status == 200


def test_a_search_finds_names_with_every_word(site):
    name = site.records["products"][3]["name"]
    found = site.reply("GET", "/search?q=" + name.replace(" ", "+")).html
    assert "/shop/4" in links_of(found)
    assert "nothing found" in site.reply("GET", "/search?q=").html


@pytest.mark.parametrize(
    ("method", "url", "form", "status"),
    [
        ("GET", "/shop/999", None, 404),
        ("GET", "/shop/00000000001", None, 404),
        ("GET", "//[/shop", None, 400),
        ("GET", "/orders/1", None, 404),
        ("POST", "/shop/1", {}, 404),
        ("POST", "/users/ada", {"city": "x"}, 404),
        ("POST", "/forum/1/comment", {"text": "  "}, 400),
        ("POST", "/forum/1/comment", {"text": "x" * (MAX_TEXT + 1)}, 400),
        ("POST", "/issues/1/edit", {"assignee": "the king", "status": "open"}, 400),
        ("POST", "/issues/1/edit", {"assignee": "nobody"}, 400),
        ("POST", "/shop/1/cart", {"quantity": "-1"}, 400),
        ("POST", "/shop/1/cart", {"quantity": "1e3"}, 400),
        ("POST", "/forum/1/comments/77/delete", {}, 404),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(site, method, url, form, status):
    before = site.state()
    assert site.reply(method, url, form).status == status
    assert site.state() == before


def test_comments_of_others_stay(site):
    thread = next(one for one in site.records["threads"] if one["comments"])
    path = f"/forum/{thread['id']}/comments/0/delete"
    assert site.reply("POST", path).status == 403
    site.reply("POST", f"/forum/{thread['id']}/comment", {"text": "mine"})
    own = path.replace("/0/", f"/{len(thread['comments']) - 1}/")
    assert site.reply("POST", own).status == 200
    assert all(one["text"] != "mine" for one in thread["comments"])


def test_markup_that_is_posted_is_text(site):
    hostile = '</p><form action="/cart/order" method="post"><button>x</button></form><a href="/x">'
    reply = site.reply("POST", "/forum/1/comment", {"text": hostile})
    assert '<form action="/cart/order' not in reply.html
    assert hostile in parse_html(reply.html).text
    assert json.loads(site.state())["threads"][0]["comments"][-1]["text"] == hostile
