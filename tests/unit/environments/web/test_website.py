"""The site itself: its pages, its forms, and what it refuses."""

import copy
import json

import pytest

from espalier.config import SplitsConfig
from espalier_environments.web.catalogue import made_site
from espalier_environments.web.config import SiteConfig
from espalier_environments.web.document import parse_html
from espalier_environments.web.website import MAX_TEXT, Website

SPLITS = SplitsConfig()


@pytest.fixture
def site():
    return Website(made_site(SiteConfig(), 0, "train", SPLITS))


def links_of(page):
    return [one.attributes["href"] for one in parse_html(page).walk() if "href" in one.attributes]


def test_every_link_leads_to_a_page_and_changes_nothing(site):
    before = site.state()
    seen, ahead = {"/"}, ["/"]
    while ahead:
        reply = site.reply("GET", ahead.pop())
        assert reply.status == 200, reply.url
        found = set(links_of(reply.html)) - seen
        seen |= found
        ahead += found
    assert len({page.partition("?")[0] for page in seen}) >= 60
    assert site.state() == before


@pytest.mark.parametrize(
    ("path", "form", "table", "changed"),
    [
        ("/issues/2/edit", {"assignee": "nobody", "status": "closed"}, "issues",
         {"status": "closed"}),
        ("/forum/3/comment", {"text": " a  b\n"}, "threads", {}),
        ("/shop/1/review", {"stars": "5"}, "products", {}),
        ("/shop/1/cart", {"quantity": "2"}, "cart", {"product": 1, "quantity": 2}),
        ("/forum/new", {"title": "hello"}, "threads", {"name": "hello"}),
        ("/issues/new", {"title": "it is slow", "label": "bug"}, "issues", {"name": "it is slow"}),
    ],
)  # fmt: skip
def test_a_form_changes_one_table_alone(site, path, form, table, changed):
    before = copy.deepcopy(site.records)
    assert site.reply("POST", path, form).status == 200
    assert {name for name in before if before[name] != site.records[name]} == {table}
    assert any(record.items() >= changed.items() for record in site.records[table])


def test_an_order_takes_what_there_is_and_no_more(site):
    stock = site.records["products"][0]["stock"]
    for _ in range(stock):
        site.reply("POST", "/shop/1/cart", {"quantity": "1"})
    assert site.reply("POST", "/cart/order").url == "/orders/1"
    assert site.records["products"][0]["stock"] == 0
    assert site.reply("POST", "/cart/order").status == 400
    assert "add to cart" not in site.reply("GET", "/shop/1").html
    assert site.reply("POST", "/shop/1/cart", {"quantity": "1"}).status == 400


@pytest.mark.parametrize(
    ("method", "url", "form", "status"),
    [
        ("GET", "/shop/999", None, 404),
        ("GET", "/shop/00000000001", None, 404),
        ("GET", "//[/shop", None, 400),
        ("POST", "/users/ada", {"city": "x"}, 404),
        ("POST", "/forum/1/comment", {"text": "  "}, 400),
        ("POST", "/forum/1/comment", {"text": "x" * (MAX_TEXT + 1)}, 400),
        ("POST", "/issues/1/edit", {"assignee": "the king", "status": "open"}, 400),
        ("POST", "/shop/1/cart", {"quantity": "-1"}, 400),
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
