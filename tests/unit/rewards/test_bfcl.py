"""BFCL's check: types, accepted values and order. The verdicts were compared with upstream's own
(`python -m tests.interop.bfcl`)."""

import pytest

from espalier.rewards.bfcl import WrittenCall, calls_fault

OBJECT = {"type": "dict", "properties": {}}
STRINGS, OBJECTS = ({"type": "array", "items": {"type": one}} for one in ("string", "dict"))
PROPERTIES = {
    "amount": {"type": "float"}, "count": {"type": "integer"}, "note": {"type": "string"},
    "tags": STRINGS, "to": OBJECT, "items": OBJECTS, "fast": {"type": "boolean"},
}  # fmt: skip
PAY = {
    "name": "shop.pay",
    "parameters": {"type": "dict", "required": ["amount"], "properties": PROPERTIES},
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
        {"count": 2, "fast": True},
        {"note": "new-york ny."},
        {"tags": ["A.B", "C"]},
        {"to": {"city": "ROME"}},
        {"to": {"city": "Rome", "zip": "1"}},
        {"items": [{"id": 1}]},
        {"tags": []},  # "" stands for the empty list, as upstream has it
    ],
)
def test_accepted_values_are_right(arguments):
    assert fault({"amount": 5} | arguments) == ""


OTHERS = (
    *(("amount", amount) for amount in ("5", 6, True, 10**400)),
    ("count", 2.0), ("count", True), ("fast", 1), ("tags", ["c", "a b"]), ("tags", "a b"),
    ("tags", ["a b", 1]), ("to", {"zip": "1"}), ("to", {"city": "Rome", "street": "x"}),
    ("items", [{"id": 1}, {"id": 1}]), ("items", [[]]), ("unknown", 1),
)  # fmt: skip


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_other_values_are_wrong(name, value):
    assert f"{name} is" in fault({"amount": 5, name: value})
    assert "amount is" in fault({})


def test_calls_are_matched_in_any_order_and_counted():
    assert "a call of pay" in fault({"amount": 5}, name="pay")
    one = {"name": "f", "parameters": {**OBJECT, "properties": {"a": {"type": "integer"}}}}
    gold = [{"f": {"a": [1]}}, {"f": {"a": [2]}}]
    first, second = WrittenCall("f", {"a": 1}), WrittenCall("f", {"a": 2})
    assert calls_fault([one], [second, first], gold) == ""
    assert calls_fault([one], [first, first], gold) != ""
    assert "3 calls" in calls_fault([one], [first, second, second], gold)
    assert "0 calls" in calls_fault([one], [], gold)
    assert "a is left out" in calls_fault([one], [WrittenCall("f", {})], gold[:1])
