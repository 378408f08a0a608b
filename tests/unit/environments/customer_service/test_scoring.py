"""Which replies tell a customer what the task wants told."""

import time

import pytest

from espalier_environments.customer_service.scoring import is_told

TOLD = (
    ("10", "You have 10 items."), ("10", "10"),
    ("10", "It is $10."), ("10", "(10)"), ("1000", "1,000 dollars"),
    ("1,000", "1000 dollars"), ("54.04", "Your total is $54.04."), ("New York, NY", "new york ny"),
    ("no", "No, sorry."), ("-5", "The balance is -5."),
    ("-5", "It is \u22125."), ("\u22125", "-5"), ("327.5", "It is $327.50."),
    ("10", "It is 10.00."),
    ("10.00", "It is $10."), ("1000", "1 000 dollars"), ("-10", "-$10"), ("10", "10, 200 and 30"),
    ("54.04", "54.040"), ("10", "it's 10-day old"),
    ("5", "Order item-5 today."), ("c++", "We sell C++."),
    ("two  words", "here are two words"), ("10%", "with 10% off"),
    ("-10", "minus 10"), ("-10", "Your balance is minus $10."), ("-2.5", "negative 2.5"),
)  # fmt: skip
NOT_TOLD = (
    ("10", "Your total is 100 dollars."), ("10", "10.5"),
    ("10", "210"), ("54.04", "$154.04"), ("5", "It is -5."),
    ("5", "-5"), ("5", "3.5"), ("no", "I do not know"),
    *(("5", f"It is {minus}5.") for minus in "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"),
    ("5", "\u22125"), ("54.04", "\u221254.04"), ("-5", "It is 5."), ("\u22125", "5"),
    *(("10", text) for text in (
        "at 12:10", "at 10:12", "10/100", "100/10", "10-20", "20\u201310", "-$10", "$-10", "10 000",
        "10\u202f000", "10%", "10 %", "10'000", "10.01",
    )),
    ("0", "10.0"), ("327.5", "327.55"), ("327.5", "1327.50"), ("5", "10\u20135 dollars"),
    ("10", "minus 10"), ("10", "It is minus $10."), ("2.5", "Negative 2.5"),
    ("no", "now"), ("10", "item10"), ("10", ""), ("c", "cat"),
)  # fmt: skip


@pytest.mark.parametrize(("output", "reply"), TOLD)
def test_what_stands_by_itself_is_told(output, reply):
    assert is_told([output], ["Hello.", reply])


@pytest.mark.parametrize(("output", "reply"), NOT_TOLD)
def test_a_part_of_another_word_or_number_tells_nothing(output, reply):
    assert not is_told([output], [reply])


def test_every_output_has_to_be_told():
    assert is_told([], [])
    assert is_told(["10", "20"], ["10 and", "then 20"])
    assert not is_told(["10", "20"], ["10"])


@pytest.mark.parametrize("piece", ["1", "-", " ", "10 ", "a"])
def test_a_long_reply_is_read_in_time_in_proportion(piece):
    started = time.perf_counter()
    is_told(["1111112", "- -x", "a" * 50 + "b"], [piece * 200_000])
    assert time.perf_counter() - started < 5
