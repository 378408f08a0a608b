"""The website: a shop, a forum, an issue tracker and an account, with records that forms change.

It imports only the standard library, and its source also runs inside sandboxes. A page is HTML
without scripts. GET changes nothing; a form is sent by POST, and the reply is the page after the
redirect. All shown text is escaped. Every request gets a reply.

    Website(records).reply("GET", "/issues?status=open&page=2")
    Website(records).reply("POST", "/issues/3/edit", {"assignee": "ada", "status": "closed"})
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

Record = dict[str, Any]
HOST = "http://site.local"
MAX_TEXT = 300
"""Most characters of a text in a form."""
MAX_ENTRIES = 200
"""Most comments, lines or orders of one record, so that an episode cannot fill the memory."""


class Reply(NamedTuple):
    """A page for the browser."""

    url: str
    """Path and query of the page; after a form, of the page it leads to."""
    status: int
    html: str


class _Refused(Exception):
    """A page that does not exist (404), a wrong form (400), or somebody else's entry (403)."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


STATUSES: tuple[str, ...] = ("open", "closed")
NOBODY = "nobody"


class Website:
    """One visitor's site; submitted forms change `records`.

    Args:
        records: records from `catalogue.made_site`, which are plain JSON.
    """

    def __init__(self, records: Record) -> None:
        self.records = records

    def state(self) -> str:
        """Return the records as JSON, which is equal for equal states."""
        return json.dumps(self.records, sort_keys=True)

    def reply(self, method: str, url: str, form: dict[str, str] | None = None) -> Reply:
        """Return the page for a link or a form; never raises, whatever a visitor sends."""
        try:
            parts = urlsplit(url)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        except ValueError:
            return self._error(url, 400, "this address cannot be read")
        path = "/" + parts.path.strip("/")
        try:
            if method == "POST":
                return self._page(self._sent(path, dict(form or {})), {})
            return self._page(path, query, parts.query)
        except _Refused as refused:
            return self._error(url, refused.status, str(refused))

    def _page(self, path: str, query: dict[str, str], written: str = "") -> Reply:
        for pattern, page in _PAGES:
            if found := pattern.fullmatch(path):
                title, body = page(self, query, *found.groups())
                return Reply(
                    path + (f"?{written}" if written else ""), 200, self._html(title, body)
                )
        raise _Refused(404, "this page is not there")

    def _sent(self, path: str, form: dict[str, str]) -> str:
        for pattern, change in _FORMS:
            if found := pattern.fullmatch(path):
                return change(self, form, *found.groups())
        raise _Refused(404, "this form is not there")

    def _error(self, url: str, status: int, reason: str) -> Reply:
        return Reply(url, status, self._html("error", f"<p>{escape(reason)}</p>"))

    def _html(self, title: str, body: str) -> str:
        menu = self.records["menu"]
        links = "".join(_link(path, name) for name, path in _SECTIONS if name in menu)
        return (
            f"<!doctype html><html><head><title>{escape(title)}</title></head><body>"
            f"<nav>{links}</nav><main>{body}</main></body></html>"
        )

    # ------------------------------------------------------------------------------ pages

    def home(self, _query: dict[str, str]) -> tuple[str, str]:
        """Show the sections, and the search over all of them."""
        links = "".join(_link(path, name) for name, path in _SECTIONS if name != "home")
        field = '<input name="q" value="">'
        return "home", f"<ul>{links}</ul>{_form('/search', [field], 'search', method='get')}"

    def search(self, query: dict[str, str]) -> tuple[str, str]:
        """Show products, threads and issues whose names have every word of the query."""
        words = _clean(query.get("q", "")).lower().split()
        found = [
            (f"/{section}/{record['id']}", record["name"])
            for section, table in (("shop", "products"), ("forum", "threads"), ("issues", "issues"))
            for record in self.records[table]
            if words and set(words) <= set(record["name"].lower().split())
        ]
        return "search", self._listed(found, "/search", query) or "<p>nothing found</p>"

    def products(self, query: dict[str, str]) -> tuple[str, str]:
        """Show all products, or those of a kind."""
        kinds = sorted({record["kind"] for record in self.records["products"]})
        return "shop", self._filtered("shop", "products", query, {"kind": kinds})

    def product(self, _query: dict[str, str], number: str) -> tuple[str, str]:
        """Show one product with its reviews, and the form that puts it into the cart."""
        product = self._record("products", number)
        facts = {name: product[name] for name in ("kind", "price", "stock", "seller")}
        reviews = [f"{one['author']} {one['stars']} stars" for one in product["reviews"]]
        amounts = [str(amount) for amount in range(1, min(product["stock"], 3) + 1)]
        forms = ""
        if amounts:
            fields = [_select("quantity", amounts, amounts[0])]
            forms = _form(f"/shop/{number}/cart", fields, "add to cart")
        more = _link(f"/shop/{number}/review", "review")
        return product["name"], _facts(facts) + forms + more + _items(reviews)

    def review(self, _query: dict[str, str], number: str) -> tuple[str, str]:
        """Show the form for a review."""
        product = self._record("products", number)
        fields = [_select("stars", list("12345"), "3")]
        return product["name"], _form(f"/shop/{number}/review", fields, "send")

    def cart(self, _query: dict[str, str]) -> tuple[str, str]:
        """Show the cart, and the button that orders it."""
        lines = self.records["cart"]
        shown = [f"{line['quantity']} {self._name(line['product'])}" for line in lines]
        buttons = (
            _form("/cart/empty", [], "empty") + _form("/cart/order", [], "order") if lines else ""
        )
        return "cart", (_items(shown) or "<p>the cart is empty</p>") + buttons

    def orders(self, query: dict[str, str]) -> tuple[str, str]:
        """Show the visitor's orders."""
        links = [(f"/orders/{one['id']}", f"order {one['id']}") for one in self.records["orders"]]
        return "orders", self._listed(links, "/orders", query) or "<p>no orders</p>"

    def order(self, _query: dict[str, str], number: str) -> tuple[str, str]:
        """Show one of the visitor's orders."""
        order = self._record("orders", number)
        shown = [f"{line['quantity']} {self._name(line['product'])}" for line in order["lines"]]
        return f"order {number}", _items(shown) + _facts({"city": order["city"]})

    def threads(self, query: dict[str, str]) -> tuple[str, str]:
        """Show all threads, or those of an author."""
        authors = sorted({record["author"] for record in self.records["threads"]})
        more = _link("/forum/new", "new thread")
        return "forum", self._filtered("forum", "threads", query, {"author": authors}) + more

    def thread(self, _query: dict[str, str], number: str) -> tuple[str, str]:
        """Show one thread with its comments; the visitor's own can be deleted."""
        thread = self._record("threads", number)
        facts = {"author": thread["author"], "votes": thread["votes"]}
        vote = "" if thread["voted"] else _form(f"/forum/{number}/vote", [], "vote")
        comments = "".join(
            f"<p>{escape(one['author'])} : {escape(one['text'])}</p>"
            + (
                _form(f"/forum/{number}/comments/{place}/delete", [], "delete")
                if one["author"] == self._visitor
                else ""
            )
            for place, one in enumerate(thread["comments"])
        )
        return thread["name"], (
            _facts(facts) + vote + _link(f"/forum/{number}/comment", "comment") + comments
        )

    def comment(self, _query: dict[str, str], number: str) -> tuple[str, str]:
        """Show the form for a comment."""
        thread = self._record("threads", number)
        return thread["name"], _form(f"/forum/{number}/comment", [_text("text", "")], "post")

    def new_thread(self, _query: dict[str, str]) -> tuple[str, str]:
        """Show the form for a thread."""
        return "new thread", _form("/forum/new", [_text("title", "")], "create")

    def issues(self, query: dict[str, str]) -> tuple[str, str]:
        """Show all issues, or those with a status or an assignee."""
        choices: dict[str, list[str]] = {
            "status": list(STATUSES),
            "assignee": self._assignees,
        }
        more = _link("/issues/new", "new issue")
        return "issues", self._filtered("issues", "issues", query, choices) + more

    def issue(self, _query: dict[str, str], number: str) -> tuple[str, str]:
        """Show one issue."""
        issue = self._record("issues", number)
        facts = {name: issue[name] for name in ("reporter", "assignee", "status", "label")}
        return issue["name"], _facts(facts) + _link(f"/issues/{number}/edit", "edit")

    def edit_issue(self, _query: dict[str, str], number: str) -> tuple[str, str]:
        """Show the form that changes an issue."""
        issue = self._record("issues", number)
        fields = [
            _select("assignee", self._assignees, issue["assignee"]),
            _select("status", list(STATUSES), issue["status"]),
        ]
        return issue["name"], _form(f"/issues/{number}/edit", fields, "save")

    def new_issue(self, _query: dict[str, str]) -> tuple[str, str]:
        """Show the form for an issue."""
        fields = [_text("title", ""), _select("label", self.records["labels"], "")]
        return "new issue", _form("/issues/new", fields, "create")

    def account(self, _query: dict[str, str]) -> tuple[str, str]:
        """Show the visitor's account."""
        account = self.records["account"]
        facts = {name: account[name] for name in ("user", "email", "street", "city")}
        more = _link("/orders", "orders") + _link("/cart", "cart")
        return "account", _facts(facts) + _link("/account/edit", "edit") + more

    def edit_account(self, _query: dict[str, str]) -> tuple[str, str]:
        """Show the form that changes the visitor's address."""
        account = self.records["account"]
        fields = [_text(name, account[name]) for name in ("email", "street", "city")]
        return "account", _form("/account/edit", fields, "save")

    def user(self, _query: dict[str, str], name: str) -> tuple[str, str]:
        """Show the public facts about a user."""
        for user in self.records["users"]:
            if user["name"] == name:
                return name, _facts({"city": user["city"], "since": user["since"]})
        raise _Refused(404, "no such user")

    def users(self, query: dict[str, str]) -> tuple[str, str]:
        """Show all users."""
        links = [(f"/users/{one['name']}", one["name"]) for one in self.records["users"]]
        return "users", self._listed(links, "/users", query)

    # ------------------------------------------------------------------------------ forms

    def put_in_cart(self, form: dict[str, str], number: str) -> str:
        """Put a product into the cart; its stock shrinks when it is ordered."""
        product = self._record("products", number)
        quantity = _chosen(form, "quantity", [str(one) for one in range(1, product["stock"] + 1)])
        _extend(self.records["cart"], {"product": product["id"], "quantity": int(quantity)})
        return "/cart"

    def send_review(self, form: dict[str, str], number: str) -> str:
        """Add the visitor's review."""
        product = self._record("products", number)
        stars = int(_chosen(form, "stars", list("12345")))
        _extend(product["reviews"], {"author": self._visitor, "stars": stars})
        return f"/shop/{number}"

    def empty_cart(self, _form: dict[str, str]) -> str:
        """Take everything out of the cart."""
        self.records["cart"] = []
        return "/cart"

    def order_cart(self, _form: dict[str, str]) -> str:
        """Order the content of the cart.

        Raises:
            _Refused: the cart is empty, or exceeds the stock.
        """
        lines = self.records["cart"]
        if not lines:
            raise _Refused(400, "the cart is empty")
        wanted: dict[int, int] = {}
        for line in lines:
            wanted[line["product"]] = wanted.get(line["product"], 0) + line["quantity"]
        by_id = {product["id"]: product for product in self.records["products"]}
        if any(by_id[number]["stock"] < amount for number, amount in wanted.items()):
            raise _Refused(400, "there is not so much of it")
        orders = self.records["orders"]
        number = max((order["id"] for order in orders), default=0) + 1
        city = self.records["account"]["city"]
        _extend(orders, {"id": number, "lines": lines, "city": city})
        for product, amount in wanted.items():
            by_id[product]["stock"] -= amount
        self.records["cart"] = []
        return f"/orders/{number}"

    def vote(self, _form: dict[str, str], number: str) -> str:
        """Vote for a thread, once."""
        thread = self._record("threads", number)
        if thread["voted"]:
            raise _Refused(400, "you have voted")
        thread["voted"] = True
        thread["votes"] += 1
        return f"/forum/{number}"

    def post_comment(self, form: dict[str, str], number: str) -> str:
        """Add the visitor's comment."""
        thread = self._record("threads", number)
        _extend(thread["comments"], {"author": self._visitor, "text": _given(form, "text")})
        return f"/forum/{number}"

    def delete_comment(self, _form: dict[str, str], number: str, place: str) -> str:
        """Delete one of the visitor's comments.

        Raises:
            _Refused: the comment is somebody else's.
        """
        comments = self._record("threads", number)["comments"]
        if len(place) > _MAX_DIGITS or int(place) >= len(comments):
            raise _Refused(404, "no such comment")
        if comments[int(place)]["author"] != self._visitor:
            raise _Refused(403, "this comment is not yours")
        del comments[int(place)]
        return f"/forum/{number}"

    def create_thread(self, form: dict[str, str]) -> str:
        """Create a thread."""
        threads = self.records["threads"]
        number = max((thread["id"] for thread in threads), default=0) + 1
        thread = {"id": number, "name": _given(form, "title"), "author": self._visitor}
        _extend(threads, {**thread, "votes": 0, "voted": False, "comments": []})
        return f"/forum/{number}"

    def save_issue(self, form: dict[str, str], number: str) -> str:
        """Assign, close or open an issue."""
        issue = self._record("issues", number)
        assignee = _chosen(form, "assignee", self._assignees)
        status = _chosen(form, "status", list(STATUSES))
        issue.update(assignee=assignee, status=status)
        return f"/issues/{number}"

    def create_issue(self, form: dict[str, str]) -> str:
        """Report an issue."""
        issues = self.records["issues"]
        number = max((issue["id"] for issue in issues), default=0) + 1
        name, label = _given(form, "title"), _chosen(form, "label", self.records["labels"])
        issue = {"id": number, "name": name, "label": label, "reporter": self._visitor}
        _extend(issues, {**issue, "assignee": NOBODY, "status": "open"})
        return f"/issues/{number}"

    def save_account(self, form: dict[str, str]) -> str:
        """Change the visitor's address; the name stays."""
        given = {name: _given(form, name) for name in ("email", "street", "city")}
        self.records["account"].update(given)
        return "/account"

    # ------------------------------------------------------------------------------ parts

    @property
    def _visitor(self) -> str:
        return self.records["account"]["user"]

    @property
    def _assignees(self) -> list[str]:
        return [NOBODY, *(user["name"] for user in self.records["users"])]

    def _record(self, table: str, number: str) -> Record:
        if len(number) <= _MAX_DIGITS:
            for record in self.records[table]:
                if record["id"] == int(number):
                    return record
        raise _Refused(404, "this page is not there")

    def _name(self, product: int) -> str:
        return self._record("products", str(product))["name"]

    def _filtered(
        self, section: str, table: str, query: dict[str, str], choices: dict[str, list[str]]
    ) -> str:
        """Return a page of the records that match the query, and the form that narrows it."""
        chosen = {
            name: query[name] for name, values in choices.items() if query.get(name) in values
        }
        links = [
            (f"/{section}/{record['id']}", record["name"])
            for record in self.records[table]
            if all(record[name] == value for name, value in chosen.items())
        ]
        listed = self._listed(links, f"/{section}", {**chosen, "page": query.get("page", "1")})
        if not self.records["filters"]:
            return listed
        fields = [
            _select(name, ["any", *values], chosen.get(name, "any"))
            for name, values in choices.items()
        ]
        return listed + _form(f"/{section}", fields, "filter", method="get")

    def _listed(self, links: list[tuple[str, str]], path: str, query: dict[str, str]) -> str:
        """Return the links of one page, and the links to the previous and next pages."""
        size = self.records["page_size"]
        asked = query.get("page", "1")
        page = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 4 else 1
        pages = -(-len(links) // size)
        rest = "&".join(
            f"{quote(name, errors='replace')}={quote(value, errors='replace')}"
            for name, value in query.items()
            if name != "page"
        )
        around = [("previous", page - 1)] * (1 < page <= pages) + [("next", page + 1)] * (
            1 <= page < pages
        )
        shown = links[(page - 1) * size : page * size] if page else []
        return "".join(_link(where, name) for where, name in shown) + "".join(
            _link(f"{path}?{rest + '&' if rest else ''}page={number}", name)
            for name, number in around
        )


_MAX_DIGITS = 6
_SECTIONS = (
    ("home", "/"),
    ("shop", "/shop"),
    ("forum", "/forum"),
    ("issues", "/issues"),
    ("users", "/users"),
    ("account", "/account"),
)


def _extend(entries: list[Record], entry: Record) -> None:
    if len(entries) >= MAX_ENTRIES:
        raise _Refused(400, "there is no room for more")
    entries.append(entry)


def _clean(text: str) -> str:
    """Return text as it is stored: one line of encodable characters."""
    return " ".join(text.encode(errors="replace").decode().split())


def _given(form: dict[str, str], name: str) -> str:
    text = _clean(form.get(name, ""))
    if not text:
        raise _Refused(400, f"{name} is missing")
    if len(text) > MAX_TEXT:
        raise _Refused(400, f"{name} is too long")
    return text


def _chosen(form: dict[str, str], name: str, options: list[str]) -> str:
    value = form.get(name, "")
    if value not in options:
        raise _Refused(400, f"{name} is none of those")
    return value


def _link(path: str, name: str) -> str:
    return f'<a href="{escape(path)}">{escape(name)}</a>'


def _facts(facts: dict[str, object]) -> str:
    return "".join(
        f'<p>{escape(name)} <b id="{escape(name)}">{escape(str(value))}</b></p>'
        for name, value in facts.items()
    )


def _items(texts: list[str]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in texts)


def _text(name: str, value: str) -> str:
    return f'<input name="{escape(name)}" value="{escape(value)}" maxlength="{MAX_TEXT}">'


def _select(name: str, options: list[str], value: str) -> str:
    shown = "".join(
        f"<option{' selected' * (option == value)}>{escape(option)}</option>" for option in options
    )
    return f'<select name="{escape(name)}">{shown}</select>'


def _form(path: str, fields: list[str], button: str, *, method: str = "post") -> str:
    return (
        f'<form action="{escape(path)}" method="{method}">{"".join(fields)}'
        f"<button>{escape(button)}</button></form>"
    )


_N = "([0-9]{1,9})"
_PAGES = tuple(
    (re.compile(pattern), page)
    for pattern, page in (
        ("/", Website.home),
        ("/search", Website.search),
        ("/shop", Website.products),
        (f"/shop/{_N}", Website.product),
        (f"/shop/{_N}/review", Website.review),
        ("/cart", Website.cart),
        ("/orders", Website.orders),
        (f"/orders/{_N}", Website.order),
        ("/forum", Website.threads),
        ("/forum/new", Website.new_thread),
        (f"/forum/{_N}", Website.thread),
        (f"/forum/{_N}/comment", Website.comment),
        ("/issues", Website.issues),
        ("/issues/new", Website.new_issue),
        (f"/issues/{_N}", Website.issue),
        (f"/issues/{_N}/edit", Website.edit_issue),
        ("/account", Website.account),
        ("/account/edit", Website.edit_account),
        ("/users", Website.users),
        ("/users/([a-z]{1,40})", Website.user),
    )
)
_FORMS = tuple(
    (re.compile(pattern), change)
    for pattern, change in (
        (f"/shop/{_N}/cart", Website.put_in_cart),
        (f"/shop/{_N}/review", Website.send_review),
        ("/cart/empty", Website.empty_cart),
        ("/cart/order", Website.order_cart),
        (f"/forum/{_N}/vote", Website.vote),
        (f"/forum/{_N}/comment", Website.post_comment),
        (f"/forum/{_N}/comments/{_N}/delete", Website.delete_comment),
        ("/forum/new", Website.create_thread),
        (f"/issues/{_N}/edit", Website.save_issue),
        ("/issues/new", Website.create_issue),
        ("/account/edit", Website.save_account),
    )
)
