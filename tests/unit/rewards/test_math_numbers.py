"""Single numbers of mathematical answers: value, unit, and what is no number."""

import time
from fractions import Fraction

import pytest

from espalier.rewards.math_equivalence import math_equivalent
from espalier.rewards.math_numbers import read_number, with_letter_unit

READ = (
    ("73", 73), ("-73", -73), ("+73", 73), ("\u221273", -73), ("14,000", 14000), ("73 000", 73000),
    (r"73\,000", 73000), (r"73{,}000", 73000), ("1\u202f234\u202f567", 1234567), ("0.5", "1/2"),
    (".5", "1/2"), ("1e3", 1000), ("1E3", 1000), ("2.5e-2", "1/40"), ("3/4", "3/4"),
    ("-1.5e2", -150),
    ("1 1/2", "3/2"), ("-1 1/2", "-3/2"), (r"\frac{3}{4}", "3/4"), (r"\dfrac34", "3/4"),
    (r"1\frac{1}{2}", "3/2"), (r"0.\overline{3}", "1/3"), (r"0.1\overline{6}", "1/6"),
    (r"2.\overline{9}", 3), ("**73**", 73), (r"\textbf{(073)}", 73), (r"\text{73}", 73),
    (r"$73$", 73), ("x = 73.", 73), (r"\$5", 5), ("$5.50", "11/2"), ("101_2", 5), ("101_{3}", 10),
    ("ff_{16}", 255), (r"101_{\text{two}}", 5), ("101_{(2)}", 5), (r"101_{\mathrm{3}}", 10),
    (r"101_{\text{base }2}", 5), ("1.1_2", "3/2"), ("-1.1_2", "-3/2"), ("2 million", 2_000_000),
    (r"1.5\text{ million dollars}", 1_500_000), (r"3\text{ dozen}", 36), ("3 tenths", "3/10"),
    (r"0.\dot{3}", "1/3"), (r"0.\dot{1}4285\dot{7}", "1/7"), ("-$5", -5), ("\u20ac5", 5),
)  # fmt: skip
UNITS = (
    (r"5\text{ km}", "km"), (r"5\ \mathrm{km}", "km"), ("5 kilometers", "km"),
    ("30 minutes", "min"),
    ("30 min", "min"), ("73 apples", "apple"), (r"\text{73 apples}", "apple"), (r"50\%", "%"),
    ("50%", "%"), (r"90^\circ", "degree"), ("90\u00b0", "degree"), ("12 PM", "pm"), ("7", ""),
    ("$5", "dollar"), ("$5$", ""), ("\u20ac5", "euro"), ("5\u20ac", "euro"),
    ("2 million km", "km"), (r"5^\circ\text{C}", "degree c"), (r"5^{\circ}", "degree"),
    ("5 \u00b0F", "degree f"), ("5 degrees Celsius", ""),
)  # fmt: skip
NO_NUMBERS = (
    "", " ", ".", "-", "x", "5i", "5x", "2\\pi", "3 pi", "1, 2", "(1, 2)", "1/0", "2^3",
    r"\frac{1}{0}", "0,111",
    "5m", "5km", "5 squared", "a_{11}", "12_{37}",
    "1 or 2", "3 and 4", "102_2", "1_1", "9" * 41, "1e999", "5!", "2-3/4", "1..2", r"\frac{1}{x}",
)  # fmt: skip
EQUAL = (
    ("0.3333333333", r"\frac13"), ("0.333333", "1/3"), ("5", r"5\text{ km}"), (r"50\%", "50"),
    (r"50\%", r"\frac12"), ("50%", "0.5"), ("50", r"50\%"), ("28 pct", "28%"),
    ("3%", "3"), ("5 kilometres", r"5\text{ km}"), ("1 minute", "1 min"), ("101_2", "5"),
    ("5 m", r"5\text{ m}"), ("5 cm", r"5\text{ cm}"), ("5 cm^2", r"5\text{ cm}^2"),
    ("5 square centimeters", "5"), (r"5\text{ sq. cm}", r"5\text{ cm}^2"),
    (r"5\text{ square cm}", r"5\text{ cm}^{2}"), ("5 cm\u00b2", r"5\text{ cm}^2"),
    ("5\\text{ cm\u00b2}", "5 cm^2"),
    (r"5\text{ cm^2}", "5 square cm"), ("5 cubic feet", r"5\text{ ft}^3"), ("5 dollars", r"\$5"),
    ("5", r"\$5"), ("$5$", r"\$5"),
    (r"\$5", r"5\text{ dollars}"), ("5 USD", r"\$5"), ("5 h", "5 hours"),
    (r"\frac{1}{2^{20}}", r"\frac{1}{1048576}"), (r"\sqrt{4}", "2"), ("1.50", "3/2"),
    ("5m", r"5\text{ m}"), ("5km", "5 kilometers"), ("30min", "30 minutes"), ("5 m", "5m"),
    ("5hx", "5xh"), ("5", r"5^\circ\text{C}"), ("$5", "5 USD"),
    (r"5^\circ", r"5^\circ\text{C}"), ("2,000,000", "2 million"),
    ("3 dozen eggs", r"36\text{ eggs}"), ("2 million", r"2\text{ million}"),
    (r"5\text{ pounds}", "\u00a35"),
)  # fmt: skip
UNEQUAL = (
    ("0.25%", "1/4"), ("1/2%", "1/2"), (r"\frac12", r"0.5\%"), ("5%", "5 m"), ("5%", "0.5"),
    ("0.33", "1/3"), ("0.333334", "1/3"), ("0.0000004", "0.0000003"), ("1.0000001", "1.0000002"),
    (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"), ("0", r"2^{-60}"),
    (r"\frac{1}{52!}", r"\frac{1}{51!}"),
    (r"5\text{ m}", r"5\text{ km}"), ("30 minutes", "30 hours"), ("12 AM", "12 PM"),
    ("101_2", "101_3"),
    ("1011_2", "1011"), ("5i", "5"), ("2-3/4", "11/4"), ("1 1/2", "11/2"), (r"50\%", "0.05"),
    ("6", r"5\text{ km}"),
    ("5 m", r"5\text{ km}"), ("5 g", r"5\text{ kg}"), (r"5\text{ km}", "5 m"), ("5 h", "5 days"),
    ("5 s", "5 minutes"), ("5 m^2", r"5\text{ cm}^2"), (r"\frac{1}{2} m", r"\frac12\text{ km}"),
    (r"5\text{ cm}^2", r"5\text{ cm}"), (r"5\text{ cm}^3", r"5\text{ cm}^2"),
    ("5 cm", r"5\text{ cm}^2"), ("5 cubic cm", "5 square cm"), ("5 in^2", "5 in^3"),
    (r"5\text{ cm^3}", r"5\text{ cm^2}"),
    ("5\\text{ cm}\u00b2", r"5\text{ cm}"),
    ("5 m\u00b2", r"5\text{ cm}^2"), ("5 cents", r"\$5"), ("5 euros", r"\$5"), (r"\$5", "5 cents"),
    (r"\$-5", r"\$5"), ("5 pounds", r"\$5"), (r"5\text{ cents}", r"\$5"),
    ("5m", "5km"), ("5km", "5m"), ("30min", "30h"), ("30hours", "30min"), ("5kg", "5 g"),
    (r"5\text{km}", "5m"), (r"5\mathrm{km}", "5cm"), (r"5\,\text{km}", "5m"), ("5m", "5x"),
    (r"5^\circ\text{C}", r"5^\circ\text{F}"), ("5\u00b0C", "5\u00b0F"), ("$5", "5 euros"),
    ("\u20ac5", "$5"), ("5 cents", "$5"), ("72", "72 billion"), ("3", "3 dozen"),
    ("2", r"2\text{ million}"), ("2 billion", "2 million"), ("3", "3 tenths"), ("3", "3 squared"),
    (r"101_{\text{two}}", r"101_{\text{three}}"), ("101_{(2)}", "101_{(3)}"),
    (r"101_{\mathrm{2}}", r"101_{\mathrm{3}}"), ("1.1_2", "1.1_3"), ("1.1_2", "1.1"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "value"), READ)
def test_a_number_is_read_by_its_value(text, value):
    assert read_number(text).value == Fraction(value)


@pytest.mark.parametrize(("text", "unit"), UNITS)
def test_a_unit_has_one_name(text, unit):
    found = read_number(text)
    assert (found.unit if found else "") == unit


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_single_number_is_left_to_math_verify(text):
    assert read_number(text) is None


@pytest.mark.parametrize(("pairs", "right"), [(EQUAL, True), (UNEQUAL, False)])
def test_answers_are_equal_in_value_and_unit(pairs, right):
    for answer, gold in pairs:
        assert math_equivalent(answer, [gold]) is right, (answer, gold)


@pytest.mark.parametrize(
    "piece", ["1", "1,", "**", "(", r"\text{", "1 ", "1/", "_2", r"\,", " ", r"\dot{3}", "5m"]
)
def test_a_long_text_is_read_in_time_in_proportion(piece):
    started = time.perf_counter()
    for text in (piece * 20_000, "5_" + piece * 20_000, piece * 20_000 + " m"):
        read_number(text)
        with_letter_unit(text)
    assert time.perf_counter() - started < 2, "it takes some milliseconds"
