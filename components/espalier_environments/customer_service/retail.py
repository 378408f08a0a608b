"""The tools of an online shop's service: orders, their items and payments, users' addresses.

Each tool does the same as tau-bench's tool of that name (`tau_bench/envs/retail/tools` at 59a200c):
the same checks in the same order, and the same arithmetic, rounded only where tau-bench rounds, so
that the database is equal afterwards. Error texts are our own.
"""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, JsonValue

from espalier.environments.tools import ToolError
from espalier_environments.customer_service.arguments import StoredText, Text, chosen_from
from espalier_environments.customer_service.database import Record
from espalier_environments.customer_service.service_tools import ServiceTools

_OrderId = Annotated[Text, Field(description="order id with the # it begins with, as '#W0000000'")]
_MethodId = Annotated[
    Text, Field(description="payment method id of the user, as 'gift_card_0000000'")
]
_ItemIds = Annotated[list[Text], Field(description="item ids of the order, repeats included")]
_NewItemIds = Annotated[
    list[Text], Field(description="item ids of the same products, one for each in item_ids")
]
_Line1 = Annotated[StoredText, Field(description="first line, as '12 Mill Road'")]
_Line2 = Annotated[StoredText, Field(description="second line, as 'Suite 3', or empty")]
_City = Annotated[StoredText, Field(description="city")]
_State = Annotated[StoredText, Field(description="state, as 'CA'")]
_Country = Annotated[StoredText, Field(description="country, as 'USA'")]
_Zip = Annotated[StoredText, Field(description="zip code, as '12345'")]


class RetailTools(ServiceTools):
    """Tools over one episode's copy of the database."""

    # ------------------------------------------------------------------------------ reading

    def find_user_id_by_email(self, email: Text) -> str:
        """Find the id of a user by email."""
        wanted = email.lower()
        for user_id, user in self._state.rows("users"):
            if user["email"].lower() == wanted:
                return user_id
        raise ToolError("no user has that email")

    def find_user_id_by_name_zip(self, first_name: Text, last_name: Text, zip: _Zip) -> str:
        """Find the id of a user by name and zip code, where they know no email."""
        wanted = (first_name.lower(), last_name.lower())
        for user_id, user in self._state.rows("users"):
            name = user["name"]
            has = (name["first_name"].lower(), name["last_name"].lower())
            if has == wanted and user["address"]["zip"] == zip:
                return user_id
        raise ToolError("no user has that name and zip code")

    def get_user_details(self, user_id: Text) -> str:
        """Show a user: name, address, email, payment methods and orders."""
        return json.dumps(self._found("users", user_id, "user"))

    def get_order_details(self, order_id: _OrderId) -> str:
        """Show an order: its items, address, status and payments."""
        return json.dumps(self._found("orders", order_id, "order"))

    def get_product_details(self, product_id: Text) -> str:
        """Show a product: the items there are of it, with options, price and availability.

        A product id is another number than the item ids.
        """
        return json.dumps(self._found("products", product_id, "product"))

    def list_all_product_types(self) -> str:
        """List the names of all products with their product ids."""
        named = {
            product["name"]: product["product_id"] for _, product in self._state.rows("products")
        }
        return json.dumps(dict(sorted(named.items())))

    # ------------------------------------------------------------------------------ writing

    def cancel_pending_order(
        self,
        order_id: _OrderId,
        reason: Annotated[Text, chosen_from("no longer needed", "ordered by mistake")],
    ) -> str:
        """Cancel a pending order and refund it, after the user confirmed it with yes."""
        order = self._found("orders", order_id, "order")
        _check_status(order, "pending", "cancelled")
        if reason not in ("no longer needed", "ordered by mistake"):
            raise ToolError("the reason is 'no longer needed' or 'ordered by mistake'")
        order = self._state.edit("orders", order_id)
        refunds: list[Record] = []
        for payment in order["payment_history"]:
            refunds.append(_transaction("refund", payment["amount"], payment["payment_method_id"]))
            if "gift_card" in payment["payment_method_id"]:  # other methods take days
                self._add_to_gift_card(order, payment["payment_method_id"], payment["amount"])
        order["status"] = "cancelled"
        order["cancel_reason"] = reason
        order["payment_history"].extend(refunds)
        return json.dumps(order)

    def modify_pending_order_address(  # noqa: PLR0913 (tau-bench's schema)
        self, order_id: _OrderId, address1: _Line1, address2: _Line2, city: _City, state: _State,
        country: _Country, zip: _Zip,
    ) -> str:  # fmt: skip
        """Change where a pending order is sent, after the user confirmed the address with yes."""
        _check_status(self._found("orders", order_id, "order"), "pending", "modified")
        order = self._state.edit("orders", order_id)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return json.dumps(order)

    def modify_pending_order_payment(self, order_id: _OrderId, payment_method_id: _MethodId) -> str:
        """Pay a pending order by another method, after the user confirmed it with yes."""
        order = self._found("orders", order_id, "order")
        _check_status(order, "pending", "modified")
        method = self._payment_method(order, payment_method_id)
        payments = order["payment_history"]
        if len(payments) != 1 or payments[0]["transaction_type"] != "payment":
            raise ToolError("the order was not paid in one payment")
        amount, former = payments[0]["amount"], payments[0]["payment_method_id"]
        if former == payment_method_id:
            raise ToolError("the order is paid by that method already")
        _check_balance(method, amount)
        order = self._state.edit("orders", order_id)
        order["payment_history"] += [
            _transaction("payment", amount, payment_method_id),
            _transaction("refund", amount, former),
        ]
        if method["source"] == "gift_card":
            self._add_to_gift_card(order, payment_method_id, -amount)
        if "gift_card" in former:
            self._add_to_gift_card(order, former, amount)
        return json.dumps(order)

    def modify_pending_order_items(
        self,
        order_id: _OrderId,
        item_ids: _ItemIds,
        new_item_ids: _NewItemIds,
        payment_method_id: _MethodId,
    ) -> str:
        """Change items of a pending order to others of their products; once for an order.

        The user has confirmed all items and how the difference is paid or refunded with yes.
        """
        order = self._found("orders", order_id, "order")
        _check_status(order, "pending", "modified")
        difference = self._price_difference(order, item_ids, new_item_ids)
        method = self._payment_method(order, payment_method_id)
        _check_balance(method, difference)
        order = self._state.edit("orders", order_id)
        kind = "payment" if difference > 0 else "refund"
        order["payment_history"].append(_transaction(kind, abs(difference), payment_method_id))
        if method["source"] == "gift_card":
            self._add_to_gift_card(order, payment_method_id, -difference)
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            # the first item with that id, even one that an earlier pair changed to it
            item = _first_item(order, item_id)
            variant = self._variants(item)[new_item_id]
            item.update(item_id=new_item_id, price=variant["price"], options=variant["options"])
        order["status"] = "pending (item modified)"
        return json.dumps(order)

    def return_delivered_order_items(
        self, order_id: _OrderId, item_ids: _ItemIds, payment_method_id: _MethodId
    ) -> str:
        """Ask for the return of items of a delivered order, after the user confirmed it with yes.

        The refund goes to the method that paid the order, or to a gift card.
        """
        order = self._found("orders", order_id, "order")
        _check_status(order, "delivered", "returned")
        self._payment_method(order, payment_method_id)
        first = order["payment_history"][0]["payment_method_id"] if order["payment_history"] else ""
        if "gift_card" not in payment_method_id and payment_method_id != first:
            raise ToolError("refunds go to the method that paid, or to a gift card")
        _check_items(order, item_ids)
        order = self._state.edit("orders", order_id)
        order["status"] = "return requested"
        order["return_items"] = sorted(item_ids)
        order["return_payment_method_id"] = payment_method_id
        return json.dumps(order)

    def exchange_delivered_order_items(
        self,
        order_id: _OrderId,
        item_ids: _ItemIds,
        new_item_ids: _NewItemIds,
        payment_method_id: _MethodId,
    ) -> str:
        """Ask for the exchange of items of a delivered order for others of their products; once.

        The user has confirmed all items and how the difference is paid or refunded with yes.
        """
        order = self._found("orders", order_id, "order")
        _check_status(order, "delivered", "exchanged")
        difference = round(self._price_difference(order, item_ids, new_item_ids), 2)
        _check_balance(self._payment_method(order, payment_method_id), difference)
        order = self._state.edit("orders", order_id)
        order["status"] = "exchange requested"
        order["exchange_items"] = sorted(item_ids)
        order["exchange_new_items"] = sorted(new_item_ids)
        order["exchange_payment_method_id"] = payment_method_id
        order["exchange_price_difference"] = difference
        return json.dumps(order)

    def modify_user_address(  # noqa: PLR0913 (tau-bench's schema)
        self, user_id: Text, address1: _Line1, address2: _Line2, city: _City, state: _State,
        country: _Country, zip: _Zip,
    ) -> str:  # fmt: skip
        """Change the address of a user, after they confirmed it with yes."""
        self._found("users", user_id, "user")
        user = self._state.edit("users", user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return json.dumps(user)

    # ------------------------------------------------------------------------------ parts

    def _payment_method(self, order: Record, method_id: str) -> Record:
        """Return a payment method of the order's user, for reading."""
        methods = self._found("users", order["user_id"], "user")["payment_methods"]
        if method_id not in methods:
            raise ToolError(f"the user has no payment method {method_id}")
        return methods[method_id]

    def _add_to_gift_card(self, order: Record, method_id: str, amount: float) -> None:
        method = self._state.edit("users", order["user_id"])["payment_methods"][method_id]
        method["balance"] = round(method["balance"] + amount, 2)

    def _variants(self, item: Record) -> Record:
        """Return item id -> item, for the product of an item in an order."""
        return self._found("products", item["product_id"], "product")["variants"]

    def _price_difference(
        self, order: Record, item_ids: list[str], new_item_ids: list[str]
    ) -> int | float:
        """Return how much more the new items cost, unrounded; the integer 0 for no items.

        Raises:
            ToolError: an item is not in the order, or a new one is not available.
        """
        _check_items(order, item_ids)
        if len(item_ids) != len(new_item_ids):
            raise ToolError("item_ids and new_item_ids need equal lengths")
        difference = 0
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item = _first_item(order, item_id)
            variant = self._variants(item).get(new_item_id)
            if variant is None or not variant["available"]:
                raise ToolError(f"there is no item {new_item_id} of that product to be had")
            difference += variant["price"] - item["price"]
        return difference


def _check_status(order: Record, wanted: str, done: str) -> None:
    if order["status"] != wanted:
        raise ToolError(f"the order is {order['status']}; only a {wanted} order can be {done}")


def _check_items(order: Record, item_ids: list[str]) -> None:
    ordered = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > ordered.count(item_id):
            raise ToolError(f"the order has no item {item_id}, or not so many")


def _check_balance(method: Record, amount: float) -> None:
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise ToolError("the balance of the gift card is too low")


def _first_item(order: Record, item_id: str) -> Record:
    return next(item for item in order["items"] if item["item_id"] == item_id)


def _transaction(kind: str, amount: float, method_id: str) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method_id}


def _address(*lines: JsonValue) -> Record:
    names = ("address1", "address2", "city", "state", "country", "zip")
    return dict(zip(names, lines, strict=True))
