"""MathAPI: stateless calculation.

Calculations that would take upstream hours, or fill the memory, are refused here: powers with more
digits than Python writes, and a precision of more than 1,000 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from espalier_environments.function_calling.states.api import Api, Reply

_MAX_DIGITS = 1_000
"""Highest precision, and most decimal places of rounding."""
_MAX_BITS = 14_284
"""Most bits of an integer: 4,300 digits, the most that Python writes."""
_METRES = {"km": 1000, "m": 1, "cm": 0.01, "mm": 0.001, "um": 1e-6, "nm": 1e-9}
_FACTORS = {
    ("cm", "in"): 0.393701, ("in", "cm"): 2.54, ("m", "ft"): 3.28084, ("ft", "m"): 0.3048,
    ("m", "yd"): 1.09361, ("yd", "m"): 0.9144, ("km", "miles"): 0.621371,
    ("miles", "km"): 1.60934, ("kg", "lb"): 2.20462, ("lb", "kg"): 0.453592,
}  # fmt: skip
_EMPTY = {"error": "the list of numbers is empty"}
_NO_NUMBER = {"error": "a number is needed"}


class MathAPI(Api):
    """BFCL's simulated calculator."""

    def logarithm(self, value: float, base: float, precision: int) -> Reply:
        """Logarithm to a base, with so many digits."""
        value, base, precision = float(value), float(base), int(precision)  # text is accepted too
        if not _is_precision(precision):
            return _NO_NUMBER
        if not 0 < value < math.inf or not 0 < base < math.inf or base == 1:
            return {"error": "no logarithm of that value to that base"}
        context = Context(prec=precision + 10)
        found = context.divide(context.ln(Decimal(value)), context.ln(Decimal(base)))
        return {"result": str(Context(prec=precision).plus(found))}

    def mean(self, numbers: list[float]) -> Reply:
        """Mean of numbers."""
        return _of_list(numbers, lambda found: sum(found) / len(found))

    def standard_deviation(self, numbers: list[float]) -> Reply:
        """Standard deviation of numbers, of the population."""

        def deviation(found: list[float]) -> float:
            mean = sum(found) / len(found)
            return math.sqrt(sum((one - mean) ** 2 for one in found) / len(found))

        return _of_list(numbers, deviation)

    def si_unit_conversion(self, value: float, unit_in: str, unit_out: str) -> Reply:
        """Convert a length between metric units."""
        if not _is_number(value):
            return _NO_NUMBER
        if unit_in not in _METRES or unit_out not in _METRES:
            return {"error": f"no conversion of {unit_in} into {unit_out}"}
        return {"result": value * _METRES[unit_in] * (1 / _METRES[unit_out])}

    def imperial_si_conversion(self, value: float, unit_in: str, unit_out: str) -> Reply:
        """Convert between metric and imperial units."""
        if not _is_number(value):
            return _NO_NUMBER
        if unit_in == unit_out:
            return {"result": value}
        if (unit_in, unit_out) == ("celsius", "fahrenheit"):
            return {"result": value * 1.8 + 32}
        if (unit_in, unit_out) == ("fahrenheit", "celsius"):
            return {"result": (value - 32) * (5 / 9)}
        factor = _FACTORS.get((unit_in, unit_out))
        if factor is None:
            return {"error": f"no conversion of {unit_in} into {unit_out}"}
        return {"result": value * factor}

    def add(self, a: float, b: float) -> Reply:
        """Add two numbers."""
        return _computed(lambda: a + b)

    def subtract(self, a: float, b: float) -> Reply:
        """Subtract `b` from `a`."""
        return _computed(lambda: a - b)

    def multiply(self, a: float, b: float) -> Reply:
        """Multiply two numbers."""
        if not _is_number(a) or not _is_number(b):
            return _NO_NUMBER
        return {"result": a * b}

    def divide(self, a: float, b: float) -> Reply:
        """Divide `a` by `b`."""
        if b == 0:
            return {"error": "a division by zero"}
        return _computed(lambda: a / b)

    def power(self, base: float, exponent: float) -> Reply:
        """Raise a number to a power."""
        if not isinstance(base, float) and abs(exponent) * int(base).bit_length() > _MAX_BITS:
            raise ValueError("a number of more digits than can be written")
        return _computed(lambda: base**exponent)

    def square_root(self, number: float, precision: int) -> Reply:
        """Square root, with so many digits."""
        if not _is_number(number) or not _is_precision(precision):
            return _NO_NUMBER
        if number < 0:
            return {"error": "no root of a negative number"}
        try:
            return {"result": str(Context(prec=precision).sqrt(Decimal(number)))}
        except InvalidOperation:
            return _NO_NUMBER

    def absolute_value(self, number: float) -> Reply:
        """Absolute value."""
        return _computed(lambda: abs(number))

    def round_number(self, number: float, decimal_places: int = 0) -> Reply:
        """Round a number."""
        if abs(decimal_places) > _MAX_DIGITS:
            raise ValueError(f"more than {_MAX_DIGITS} decimal places")
        return _computed(lambda: round(number, decimal_places))

    def percentage(self, part: float, whole: float) -> Reply:
        """What percentage `part` is of `whole`."""
        if whole == 0:
            return {"error": "a share of zero"}
        return _computed(lambda: part / whole * 100)

    def min_value(self, numbers: list[float]) -> Reply:
        """Least of numbers."""
        return _of_list(numbers, min)

    def max_value(self, numbers: list[float]) -> Reply:
        """Greatest of numbers."""
        return _of_list(numbers, max)

    def sum_values(self, numbers: list[float]) -> Reply:
        """Sum of numbers."""
        return _of_list(numbers, sum)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_precision(value: object) -> bool:
    return isinstance(value, int) and 1 <= value <= _MAX_DIGITS


def _computed(compute: Callable[[], Any]) -> Reply:
    try:
        return {"result": compute()}
    except TypeError:
        return _NO_NUMBER


def _of_list(numbers: list[float], compute: Callable[[list[float]], Any]) -> Reply:
    if not numbers:
        return _EMPTY
    return _computed(lambda: compute(numbers))
