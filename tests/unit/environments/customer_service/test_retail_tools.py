import pytest

from tests.unit.environments.customer_service.tables import call, service


@pytest.fixture
def retail():
    return service("retail")


def test_users_are_found_in_any_case_and_where_they_moved(retail):
    assert call(retail, "find_user_id_by_email", email="ADA@example.com").content == "ada_1"
    name = {"first_name": "ada", "last_name": "BERG"}
    assert call(retail, "find_user_id_by_name_zip", **name, zip="97301").content == "ada_1"
    assert not call(retail, "find_user_id_by_name_zip", **name, zip="1").succeeded
    lines = {"address1": "", "address2": "", "city": "", "state": "", "country": "", "zip": "1"}
    assert call(retail, "modify_user_address", user_id="ada_1", **lines).succeeded
    assert call(retail, "find_user_id_by_name_zip", **name, zip="1").content == "ada_1"


def test_a_cancelled_order_is_refunded_to_its_gift_card(retail):
    given = {"order_id": "#W1", "reason": "no longer needed"}
    assert call(retail, "cancel_pending_order", **given).succeeded
    changed = retail.state.changes()
    assert changed["users"]["ada_1"]["payment_methods"]["gift_card_1"]["balance"] == 30.2
    assert changed["orders"]["#W1"]["status"] == "cancelled"
    assert not call(retail, "cancel_pending_order", **given).succeeded
    back = {"order_id": "#W2", "item_ids": ["7"], "payment_method_id": "gift_card_1"}
    returned = [call(retail, "return_delivered_order_items", **back) for _ in range(2)]
    assert [one.succeeded for one in returned] == [True, False], "an order is returned once"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cancel_pending_order", {"order_id": "#W1", "reason": "bored"}),
        ("cancel_pending_order", {"order_id": "#W2", "reason": "no longer needed"}),
        ("modify_pending_order_payment", {"order_id": "#W1", "payment_method_id": "gift_card_1"}),
        ("modify_pending_order_payment", {"order_id": "#W1", "payment_method_id": "visa"}),
        ("return_delivered_order_items",
         {"order_id": "#W2", "item_ids": ["7", "7"], "payment_method_id": "paypal_1"}),
        ("exchange_delivered_order_items",
         {"order_id": "#W2", "item_ids": ["7"], "new_item_ids": ["9"],
          "payment_method_id": "paypal_1"}),
        ("exchange_delivered_order_items",
         {"order_id": "#W2", "item_ids": ["7"], "new_item_ids": [],
          "payment_method_id": "paypal_1"}),
        ("modify_pending_order_items",
         {"order_id": "#W1", "item_ids": ["8"], "new_item_ids": ["7"],
          "payment_method_id": "paypal_1"}),
        ("get_order_details", {"order_id": "#W1", "other": 1}),
    ],
)  # fmt: skip
def test_refused_calls_change_nothing(retail, name, arguments):
    assert not call(retail, name, **arguments).succeeded
    assert retail.state.changes() == {}


def test_changed_items_are_paid_by_their_unrounded_difference(retail):
    given = {"item_ids": ["7"], "new_item_ids": ["8"], "payment_method_id": "gift_card_1"}
    assert call(retail, "modify_pending_order_items", order_id="#W1", **given).succeeded
    order = retail.state.find("orders", "#W1")
    assert order["payment_history"][1]["amount"] == 25.4 - 20.1  # not 5.3
    assert order["items"][0]["options"] == {"color": "blue"}
    user = retail.state.find("users", "ada_1")
    assert user["payment_methods"]["gift_card_1"]["balance"] == 4.8


def test_another_method_pays_and_the_former_is_refunded(retail):
    given = {"order_id": "#W1", "payment_method_id": "paypal_1"}
    assert call(retail, "modify_pending_order_payment", **given).succeeded
    history = retail.state.find("orders", "#W1")["payment_history"]
    assert [one["transaction_type"] for one in history] == ["payment", "payment", "refund"]


def test_expressions_are_calculated_to_two_digits(retail):
    results = {"(1.005 * 3) / 2": "1.51", "2 ** 3": "8.0", "7 // 2 - -1": "4.0"}
    for expression, value in results.items():
        assert call(retail, "calculate", expression=expression).content == value


@pytest.mark.parametrize(
    "expression", ["1 / 0", "2 +", "abs(1)", "9 ** 9 ** 9 ** 9", "()", "(-8) ** .5", "1 (2)", ""]
)
def test_what_is_no_arithmetic_is_refused(retail, expression):
    assert not call(retail, "calculate", expression=expression).succeeded
