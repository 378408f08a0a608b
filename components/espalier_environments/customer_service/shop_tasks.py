"""Requests of the generated shop's users: words, gold actions, and what the user can tell.

Each task belongs to a user, and the digest of the user's id decides the split.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from espalier.config import SplitsConfig
from espalier.environments.episode import written_calls
from espalier.environments.family import dealt_split, make_task
from espalier.records import JsonObject, Split, Task, ToolCall
from espalier_environments.customer_service.config import RequestKind, ShopConfig
from espalier_environments.customer_service.database import Database, Record
from espalier_environments.customer_service.scoring import MADE_SHOP
from espalier_environments.customer_service.shop import draw_address

REASONS = ("no longer needed", "ordered by mistake")


class _Asked(NamedTuple):
    """A request about an order, in words, and the actions that fulfil it."""

    words: str
    actions: tuple[ToolCall, ...]
    outputs: tuple[str, ...] = ()


class _Order(NamedTuple):
    """An order with its user, and the random generator of the request."""

    dice: random.Random
    database: Database
    user_id: str
    user: Record
    order: Record

    @property
    def order_id(self) -> str:
        return self.order["order_id"]

    @property
    def paid_by(self) -> str:
        return self.order["payment_history"][0]["payment_method_id"]

    def is_(self, status: str) -> bool:
        return self.order["status"] == status


def shop_tasks(
    database: Database, config: ShopConfig, splits: SplitsConfig, split: Split, family: str
) -> list[Task]:
    """Return all tasks of the split's users, in random order: one per order and fitting kind."""
    tasks: list[Task] = []
    for user_id, user in database.tables["users"].items():
        if dealt_split(user_id, splits) != split:
            continue
        for order_id in user["orders"]:
            for kind in config.kinds:
                dice = random.Random(f"{config.seed} {order_id} {kind}")
                order = database.tables["orders"][order_id]
                asked = _ASKED[kind](_Order(dice, database, user_id, user, order))
                if asked is not None:
                    is_named = dice.random() >= config.unnamed_share
                    tasks.append(_task(asked, kind, split, family, user_id, user, is_named))
    random.Random(f"{config.seed} {split}").shuffle(tasks)
    return tasks


def _task(  # noqa: PLR0913 (the parts of a task)
    asked: _Asked,
    kind: RequestKind,
    split: Split,
    family: str,
    user_id: str,
    user: Record,
    is_named: bool,  # noqa: FBT001
) -> Task:
    first, last = user["name"]["first_name"], user["name"]["last_name"]
    zip_code = user["address"]["zip"]
    find = _call("find_user_id_by_name_zip", first_name=first, last_name=last, zip=zip_code)
    actions = (find, *asked.actions)
    said = f"i am {first} {last} , zip {zip_code} . {asked.words}" if is_named else asked.words
    return make_task(
        family,
        said,
        gold=(written_calls(actions),),
        split=split,
        source=MADE_SHOP,
        key=f"{user_id} {kind} {asked.words}",
        kind="final_state",
        arguments={
            "domain": "retail",
            "instruction": f"You are {first} {last} in {zip_code}. Your request: {asked.words}",
            "outputs": list(asked.outputs),
            "facts": {"name": f"{first} {last}", "zip": zip_code},
            "is_named": is_named,
        },
        metadata={
            "difficulty": float(len(actions) + (not is_named)),
            "pattern": kind,
            "extra": {"kind": kind, "entities": [user_id]},
        },
    )


def _call(name: str, **arguments: str | list[str]) -> ToolCall:
    given: JsonObject = {**arguments}  # pyright: ignore[reportAssignmentType] (texts and lists)
    return ToolCall(name=name, arguments=given)


def _look(asked: _Order) -> ToolCall:
    return _call("get_order_details", order_id=asked.order_id)


def _cancel(asked: _Order) -> _Asked | None:
    if not asked.is_("pending"):
        return None
    reason = asked.dice.choice(REASONS)
    wish = asked.dice.choice(("please cancel order {}", "i want to cancel order {}"))
    because = "i ordered it by mistake" if "mistake" in reason else "it is no longer needed"
    cancel = _call("cancel_pending_order", order_id=asked.order_id, reason=reason)
    return _Asked(f"{wish.format(asked.order_id)} , {because} .", (_look(asked), cancel))


def _return(asked: _Order) -> _Asked | None:
    if not asked.is_("delivered"):
        return None
    item = asked.dice.choice(asked.order["items"])
    wish = asked.dice.choice(("i want to return the {} of order {} .", "take back the {} of {} ."))
    back = _call(
        "return_delivered_order_items",
        order_id=asked.order_id,
        item_ids=[item["item_id"]],
        payment_method_id=asked.paid_by,
    )
    return _Asked(wish.format(item["name"], asked.order_id), (_look(asked), back))


def _payment(asked: _Order) -> _Asked | None:
    others = [name for name in asked.user["payment_methods"] if name != asked.paid_by]
    if not asked.is_("pending") or not others:
        return None
    name = asked.dice.choice(others)
    source = asked.user["payment_methods"][name]["source"].replace("_", " ")
    wish = asked.dice.choice(("pay order {} with my {} instead .", "i pay {} with my {} ."))
    pay = _call("modify_pending_order_payment", order_id=asked.order_id, payment_method_id=name)
    look = _call("get_user_details", user_id=asked.user_id)
    return _Asked(wish.format(asked.order_id, source), (look, pay))


def _address(asked: _Order) -> _Asked | None:
    if not asked.is_("pending"):
        return None
    new = draw_address(asked.dice, str(asked.dice.randint(1000, 9999)))
    words = f"send order {asked.order_id} to {new['address1']} , {new['city']} , zip {new['zip']} ."
    send = _call("modify_pending_order_address", order_id=asked.order_id, **new)
    return _Asked(words, (_look(asked), send))


def _exchange(asked: _Order) -> _Asked | None:
    item = asked.dice.choice(asked.order["items"])
    others = [
        variant
        for variant in asked.database.tables["products"][item["product_id"]]["variants"].values()
        if variant["available"] and variant["item_id"] != item["item_id"]
    ]
    if not others:
        return None
    new = asked.dice.choice(others)
    options = f"{new['options']['size']} {new['options']['color']}"
    words = f"change the {item['name']} of order {asked.order_id} to a {options} one ."
    tool = (
        "modify_pending_order_items" if asked.is_("pending") else "exchange_delivered_order_items"
    )
    change = _call(
        tool,
        order_id=asked.order_id,
        item_ids=[item["item_id"]],
        new_item_ids=[new["item_id"]],
        payment_method_id=asked.paid_by,
    )
    product = _call("get_product_details", product_id=item["product_id"])
    return _Asked(words, (_look(asked), product, change))


def _price(asked: _Order) -> _Asked:
    item = asked.dice.choice(asked.order["items"])
    wish = asked.dice.choice(("what did the {} of order {} cost ?", "how much was the {} in {} ?"))
    words = wish.format(item["name"], asked.order_id)
    return _Asked(words, (_look(asked),), (str(item["price"]),))


def _refusal(asked: _Order) -> _Asked | None:
    """Ask to cancel an order that can no longer be cancelled: the user must be told why."""
    if not asked.is_("delivered"):
        return None
    reason = asked.dice.choice(("i ordered it by mistake", "it is no longer needed"))
    words = f"please cancel order {asked.order_id} , {reason} ."
    return _Asked(words, (_look(asked),), ("delivered",))


_ASKED: dict[RequestKind, Callable[[_Order], _Asked | None]] = {
    "cancel": _cancel,
    "return": _return,
    "payment": _payment,
    "address": _address,
    "exchange": _exchange,
    "price": _price,
    "refusal": _refusal,
}


def confirmation(action: ToolCall) -> str | None:
    """Return the question asked before a call that changes the database; None for others."""
    words = _VERBS.get(action.name)
    return words and f"{words} {action.arguments['order_id']} : yes or no ?"


_VERBS = {
    "cancel_pending_order": "cancel",
    "return_delivered_order_items": "return items of",
    "modify_pending_order_payment": "change payment of",
    "modify_pending_order_address": "change address of",
    "modify_pending_order_items": "change items of",
    "exchange_delivered_order_items": "exchange items of",
}
