import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from espalier_environments.code.inside.values import Unreadable, decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary() | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False)
    | st.fractions() | st.datetimes() | st.dates() | st.times() | st.timedeltas() | st.uuids()
    | st.builds(range, st.integers(), st.integers(), st.integers(1, 9)),
    lambda below: (
        st.lists(below, max_size=4)
        | st.lists(below, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(), below, max_size=3)
        | st.sets(st.integers() | st.text(), max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip
STANDARD = ("Decimal", "Fraction", "range", "date", "datetime", "time", "timedelta", "UUID", "os")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: (
        st.lists(below, max_size=4)
        | st.tuples(st.sampled_from("iflstdcybo"), below).map(list)
        | st.tuples(st.just("v"), st.sampled_from(STANDARD), below, below).map(list)
        | st.dictionaries(st.text(), below, max_size=2)
    ),
    max_leaves=12,
)


def refuse(*_):
    raise AssertionError("a plain value is not held")


@given(PLAIN)
def test_plain_values_come_back_equal_and_of_their_types(value):
    back = decode(json.loads(json.dumps(encode(value, refuse))), refuse)
    assert back == value
    assert type(back) is type(value)


@given(JSON)
def test_whatever_is_sent_is_a_value_or_unreadable(wire):
    with contextlib.suppress(Unreadable):
        decode(wire, lambda *_: object())


def test_no_class_of_the_program_comes_with_a_value():
    class Always(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    back = decode(encode(Always(3), refuse), refuse)
    assert type(back) is int
    assert back != 4
    assert decode(encode(7**20_000, refuse), refuse) == 7**20_000, "of many digits"
