r"""Single numbers of mathematical answers, read exactly: value, unit, and how a decimal may stand.

math-verify drops units and bases, rounds to six places, and reads `1 1/2` as 1, `1e3` as a product
with Euler's number and `0.\overline{3}` as text. What is one number is therefore read here.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

_DIGITS = r"[1-9]\d{0,2}(?:,\d{3}){1,12}|\d{1,40}"
_FRAC = r"\\[dt]?frac\s*(?:\{(\d{1,40})\}\s*\{(\d{1,40})\}|(\d)\s*(\d))"
_PLAIN = re.compile(rf"({_DIGITS})?(?:\.(\d{{1,40}}))?(?:[eE]([+-]?\d{{1,3}}))?")
_REPEATING = re.compile(r"(\d{1,40})?\.(\d{0,40})\\overline\s*\{(\d{1,40})\}")
_RATIO = re.compile(r"(?:(\d{1,40})\s+)?(\d{1,40})\s*/\s*(\d{1,40})")
_LATEX_RATIO = re.compile(rf"(\d{{1,40}})?\s*{_FRAC}")
_IN_BASE = re.compile(r"([0-9a-zA-Z]{1,40})_\{?(\d{1,2})\}?")
_WRAPPED = re.compile(
    r"\*\*(.+)\*\*|\\(?:text(?:bf|it)?|math(?:bf|rm)|bm)\s*\{([^{}]*)\}|\(([\d.,]+)\)", re.DOTALL
)
_FORMULA = re.compile(r"^\$|\$$")
UNKNOWN = re.compile(r"([a-zA-Z])\s*=\s*")
"""Name of the unknown in front of an answer: `x = 5`."""
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,?\s*\\[!,]|[ \u00a0\u2009\u202f])\s*(?=\d{3}(?!\d))")
_NAMED_UNIT = r"((?:(?:square|sq\.?|cubic)\s+)?[^\W\d_]{2,40})"
_UNIT = re.compile(
    rf"\s*(?:\\(?:text|mathrm)\s*\{{\s*([^{{}}\d]{{1,40}}?(?:\^[23])?)\s*\}}|\\,?\s+{_NAMED_UNIT}"
    rf"|\s{_NAMED_UNIT}|(\\?%|\^?\s*\\circ|\u00b0))(?:\$?\^\{{?([23])\}}?)?"
)
_LETTER_UNIT = re.compile(r"(.*[\d}])\s+([dghlms])(?:\^\{?[23]\}?)?\s*", re.DOTALL)
"""A number with a unit of one letter, which may be an unknown as well."""
_POWERS = {"square": "2", "sq": "2", "cubic": "3"}
_RAISED = str.maketrans({"\u00b2": "^2", "\u00b3": "^3"})
_NO_UNITS = frozenset({"and", "ln", "log", "mod", "or", "pi", "to"})
_ALIKE = {
    name: names[0]
    for names in (
        ("m", "meter", "metre"), ("km", "kilometer", "kilometre"), ("mi", "mile"), ("yd", "yard"),
        ("cm", "centimeter", "centimetre"), ("mm", "millimeter", "millimetre"), ("g", "gram"),
        ("ft", "foot", "feet"), ("inch", "in", "inche"), ("kg", "kilogram"), ("lb", "pound"),
        ("h", "hr", "hour"), ("min", "minute"), ("s", "sec", "second"), ("yr", "year"),
        ("day", "d"), ("l", "liter", "litre"), ("degree", "\\circ", "^\\circ", "\u00b0"),
        ("%", "\\%", "percent"), ("dollar", "usd", "buck"),
    )
    for name in names
}  # fmt: skip
_MAX_EXPONENT = 400
LEAST_PLACES = 6
"""Decimal places from which a decimal may stand for a value of which it is the rounding."""


class Number(NamedTuple):
    """One number of an answer."""

    value: Fraction
    places: int | None
    """Decimal places, if it is written as a decimal."""
    unit: str
    """"" if it has none."""

    def equals(self, other: Number) -> bool:
        """Whether the two are the same number; a unit may be left out, but not be another."""
        if self.unit and other.unit and self.unit != other.unit:
            return False
        return self.value == other.value or self._rounds(other) or other._rounds(self)

    def _rounds(self, other: Number) -> bool:
        """Whether this decimal is the rounding of a value that is no decimal."""
        if self.places is None or other.places is not None or self.places < LEAST_PLACES:
            return False
        return abs(self.value - other.value) * 10**self.places <= Fraction(1, 2)


def read_number(text: str) -> Number | None:
    r"""The number that a text spells as a whole; None if it is another kind of answer.

    Read are `14,000`, `x = 14{,}000`, `-0.5`, `1e3`, `3/4`, `1 1/2`, `\frac{3}{4}`, `\$5`, `50\%`,
    `0.\overline{3}`, `101_2`, `5\text{ km}`, `30 minutes`, `**73**` and `\textbf{(073)}`.
    """
    plain = _THOUSANDS.sub("", unwrapped(text))
    bare = plain.removeprefix("\\$").removeprefix("$").strip()
    sign = -1 if bare[:1] in ("-", "\u2212") else 1
    unsigned = bare[1:].lstrip() if bare[:1] in ("-", "\u2212", "+") else bare
    for read in (_plain, _repeating, _ratio, _latex_ratio):
        found = read(unsigned)
        if found is not None:
            value, places, end = found
            unit = _unit(unsigned[end:])
            if unit is not None:
                money = "dollar" if plain.startswith("\\$") else ""
                return Number(sign * value, places, unit or money)

    based = _IN_BASE.fullmatch(unsigned)
    if based is None:
        return None
    try:
        whole = int(based[1], int(based[2]))
    except ValueError:  # no such base, or other digits than it has
        return None
    return Number(sign * Fraction(whole), None, "")


def with_letter_unit(text: str) -> str:
    r"""An answer such as `5 m` with its unit as a text, `5\text{m}`; any other as it is."""
    bare = bare_formula(text)
    found = _LETTER_UNIT.fullmatch(bare)
    return text if found is None else rf"{found[1]}\text{{{bare[found.end(1) :].strip()}}}"


def bare_formula(text: str) -> str:
    """An answer without the dollars and the full stop around it."""
    return _FORMULA.sub("", text).strip().removesuffix(".").removesuffix("$").strip()


def unwrapped(text: str) -> str:
    """An answer without the marks of text or bold and the `x =` around it."""
    bare = bare_formula(text)
    named = UNKNOWN.match(bare)
    bare = bare[named.end() :] if named else bare
    while wrapped := _WRAPPED.fullmatch(bare):
        bare = next(filter(None, wrapped.groups()), "").strip()
    return bare


class _Read(NamedTuple):
    value: Fraction
    places: int | None
    end: int


def _plain(text: str) -> _Read | None:
    found = _PLAIN.match(text)
    if found is None or not (found[1] or found[2]):
        return None
    exponent = int(found[3] or 0)
    if abs(exponent) > _MAX_EXPONENT:
        return None
    digits = f"{(found[1] or '0').replace(',', '')}.{found[2] or '0'}"
    places = len(found[2]) - exponent if found[2] else None
    return _Read(Fraction(digits) * Fraction(10) ** exponent, places, found.end())


def _repeating(text: str) -> _Read | None:
    found = _REPEATING.match(text)
    if found is None:
        return None
    whole, fixed, period = found[1] or "0", found[2], found[3]
    value = Fraction(f"{whole}.{fixed or '0'}")
    return _Read(
        value + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed)), None, found.end()
    )


def _ratio(text: str) -> _Read | None:
    found = _RATIO.match(text)
    if found is None or not int(found[3]):
        return None
    return _Read(int(found[1] or 0) + Fraction(int(found[2]), int(found[3])), None, found.end())


def _latex_ratio(text: str) -> _Read | None:
    found = _LATEX_RATIO.match(text)
    if found is None:
        return None
    over, under = int(found[2] or found[4]), int(found[3] or found[5])
    if not under:
        return None
    return _Read(int(found[1] or 0) + Fraction(over, under), None, found.end())


def _unit(behind: str) -> str | None:
    """The unit behind a number, "" if nothing stands there, None if something else does."""
    if not behind.strip():
        return ""
    found = _UNIT.fullmatch(behind.translate(_RAISED).rstrip())
    if found is None:
        return None
    *names, power = found.groups()
    named = next(filter(None, names)).strip().casefold()
    if named in _NO_UNITS:
        return None
    first, _, rest = named.partition(" ")
    if rest and (of_word := _POWERS.get(first.removesuffix("."))):
        named, power = rest.strip(), of_word
    elif named[-2:] in ("^2", "^3"):
        named, power = named[:-2], named[-1]
    single = named.removesuffix("s") if len(named) > len("ms") else named
    unit = _ALIKE.get(named, _ALIKE.get(single, single))
    return f"{unit}^{power}" if power else unit
