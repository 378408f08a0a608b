"""BFCL's check: types, accepted values and order. The verdicts were compared with upstream's own
(`python -m tests.interop.bfcl`)."""

import pytest

from espalier.rewards.bfcl import WrittenCall, calls_fault

OBJECT = {"type": "dict", "properties": {}}
PAY = {
    "name": "shop.pay",
    "parameters": {
        "type": "dict",
        "required": ["amount"],
        "properties": {
            "amount": {"type": "float"},
            "count": {"type": "integer"},
            "note": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "to": OBJECT,
            "items": {"type": "array", "items": {"type": "dict"}},
            "fast": {"type": "boolean"},
        },
    },
}
GOLD = {
    "amount": [5.0],
    "count": [2, ""],
    "note": ["New York, NY", ""],
    "tags": [["a b", "c"], ""],
    "to": [{"city": ["Rome"], "zip": ["1", ""]}, ""],
    "items": [[{"id": [1]}], ""],
    "fast": [True, ""],
}


def fault(arguments, name="shop.pay"):
    return calls_fault([PAY], [WrittenCall(name, arguments)], [{"shop.pay": GOLD}])


@pytest.mark.parametrize(
    "arguments",
    [
        {"amount": 5.0},
        {"amount": 5},
        {"amount": 5, "count": 2, "fast": True},
        {"amount": 5, "note": "new-york ny."},
        {"amount": 5, "tags": ["A.B", "C"]},
        {"amount": 5, "to": {"city": "ROME"}},
        {"amount": 5, "to": {"city": "Rome", "zip": "1"}},
        {"amount": 5, "items": [{"id": 1}]},
        {"amount": 5, "tags": []},  # "" stands for the empty list, as upstream has it
    ],
)
def test_accepted_values_are_right(arguments):
    assert fault(arguments) == ""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "amount is required"),
        ({"amount": "5"}, "amount is '5'"),
        ({"amount": 6}, "amount is 6"),
        ({"amount": True}, "amount is True"),
        ({"amount": 10**400}, "amount is"),
        ({"amount": 5, "count": 2.0}, "count is 2.0"),
        ({"amount": 5, "count": True}, "count is True"),
        ({"amount": 5, "fast": 1}, "fast is 1"),
        ({"amount": 5, "tags": ["c", "a b"]}, "tags is"),
        ({"amount": 5, "tags": "a b"}, "tags is"),
        ({"amount": 5, "tags": ["a b", 1]}, "tags is"),
        ({"amount": 5, "to": {"zip": "1"}}, "to is"),
        ({"amount": 5, "to": {"city": "Rome", "street": "x"}}, "to is"),
        ({"amount": 5, "items": [{"id": 1}, {"id": 1}]}, "items is"),
        ({"amount": 5, "items": [[]]}, "items is"),
        ({"amount": 5, "unknown": 1}, "unknown is no parameter"),
    ],
)
def test_other_values_are_wrong(arguments, why):
    assert why in fault(arguments)


def test_another_function_is_wrong():
    assert "a call of pay" in fault({"amount": 5}, name="pay")


def test_what_may_not_be_left_out_is_missed():
    one = {"name": "f", "parameters": {**OBJECT, "properties": {"a": {"type": "string"}}}}
    assert "a is left out" in calls_fault([one], [WrittenCall("f", {})], [{"f": {"a": ["x"]}}])


def test_calls_are_matched_in_any_order_and_counted():
    one = {"name": "f", "parameters": {**OBJECT, "properties": {"a": {"type": "integer"}}}}
    gold = [{"f": {"a": [1]}}, {"f": {"a": [2]}}]
    first, second = WrittenCall("f", {"a": 1}), WrittenCall("f", {"a": 2})
    assert calls_fault([one], [second, first], gold) == ""
    assert calls_fault([one], [first, first], gold) != ""
    assert "3 calls" in calls_fault([one], [first, second, second], gold)
    assert "0 calls" in calls_fault([one], [], gold)
