"""A shop generated from a seed, in the format of tau-bench's retail tables.

All text is lower case, as a tiny policy reads it, and ids end with few digits. An order goes
to the address of its user until it is given its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from espalier_environments.customer_service.config import ShopConfig
from espalier_environments.customer_service.database import Database, Record, checked_database

_FIRST = (
    "ada", "ben", "cora", "dan", "ella", "finn", "gina", "hugo", "ida", "jon", "kira", "leo",
    "mia", "noah", "olga", "paul", "rosa", "sam", "tina", "uma",
)  # fmt: skip
_LAST = (
    "adler", "berg", "costa", "diaz", "engel", "frost", "gray", "hahn", "ito", "jensen", "klein",
    "lee", "moran", "novak", "otto", "perez", "quinn", "rossi", "silva", "weber",
)  # fmt: skip
PRODUCTS = (
    "lamp", "chair", "kettle", "backpack", "jacket", "desk", "bottle", "radio", "scarf", "mirror",
    "blanket", "clock", "basket", "wallet", "helmet", "tent",
)  # fmt: skip
COLORS = ("red", "blue", "green", "black", "white", "yellow")
SIZES = ("small", "large")
ROADS = ("mill road", "oak lane", "hill street", "lake avenue", "church square")
CITIES = ("salem", "dover", "aurora", "newport", "fairview")
_METHODS = ("gift_card", "paypal", "credit_card")


def make_shop(config: ShopConfig) -> Database:
    """Return the database of a shop; equal settings give equal shops."""
    dice = random.Random(f"shop {config.seed}")
    numbers = _numbers(dice)
    products = dict(_products(dice, numbers))
    users: dict[str, Record] = {}
    orders: dict[str, Record] = {}
    for _ in range(config.users):
        user_id, user = _user(dice, next(numbers))
        users[user_id] = user
        for _ in range(dice.randint(1, config.max_orders)):
            order_id = f"#w{next(numbers)}"
            orders[order_id] = _order(dice, order_id, user_id, user, products, config.max_items)
            user["orders"].append(order_id)
    tables = {"users": users, "products": products, "orders": orders}
    return checked_database(tables, "retail", "the shop that is made here")


def draw_address(dice: random.Random, zip_code: str) -> Record:
    """Return a random address with that zip code."""
    return {
        "address1": f"{dice.randint(1, 99)} {dice.choice(ROADS)}",
        "address2": "",
        "city": dice.choice(CITIES),
        "state": "",
        "country": "",
        "zip": zip_code,
    }


def _numbers(dice: random.Random) -> Iterator[int]:
    """Yield the numbers of four digits in random order, then of five, then of six."""
    for first in (1_000, 10_000, 100_000):
        yield from dice.sample(range(first, 10 * first), 9 * first)


def _products(dice: random.Random, numbers: Iterator[int]) -> Iterator[tuple[str, Record]]:
    for name in PRODUCTS:
        product_id = str(next(numbers))
        price = dice.randint(5, 90)
        variants: dict[str, Record] = {}
        for color in dice.sample(COLORS, 3):
            for size in SIZES:
                item_id = str(next(numbers))
                variants[item_id] = {
                    "item_id": item_id,
                    "options": {"color": color, "size": size},
                    "available": dice.random() < 0.9,
                    "price": price + dice.randint(0, 9),
                }
        yield product_id, {"name": name, "product_id": product_id, "variants": variants}


def _user(dice: random.Random, number: int) -> tuple[str, Record]:
    first, last = dice.choice(_FIRST), dice.choice(_LAST)
    zip_code = str(number)
    methods: dict[str, Record] = {}
    for source in dice.sample(_METHODS, 2):
        name = f"{source}_{number}"
        methods[name] = {"source": source, "id": name}
        if source == "gift_card":
            methods[name]["balance"] = 1000
    user: Record = {
        "name": {"first_name": first, "last_name": last},
        "address": draw_address(dice, zip_code),
        "email": f"{first}.{last}{number}@example.com",
        "payment_methods": methods,
        "orders": [],
    }
    return f"{first}_{last}_{number}", user


def _order(
    dice: random.Random,
    order_id: str,
    user_id: str,
    user: Record,
    products: dict[str, Record],
    max_items: int,
) -> Record:
    items: list[Record] = []
    for product in dice.sample(list(products.values()), dice.randint(1, max_items)):
        variant = dice.choice(list(product["variants"].values()))
        items.append(
            {
                "name": product["name"],
                "product_id": product["product_id"],
                "item_id": variant["item_id"],
                "price": variant["price"],
                "options": variant["options"],
            }
        )
    payment = {
        "transaction_type": "payment",
        "amount": sum(item["price"] for item in items),
        "payment_method_id": dice.choice(list(user["payment_methods"])),
    }
    return {
        "order_id": order_id,
        "user_id": user_id,
        "items": items,
        "status": dice.choice(("pending", "delivered")),
        "payment_history": [payment],
    }
