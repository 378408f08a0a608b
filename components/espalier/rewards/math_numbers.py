r"""Single numbers of mathematical answers, read exactly: value, unit, and how a decimal may stand.

math-verify drops units and bases, rounds to six places, and reads `1 1/2` as 1, `1e3` as a product
with Euler's number and `0.\overline{3}` as text. What is one number is therefore read here.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

_DIGITS = r"[1-9]\d{0,2}(?:,\d{3}){1,12}|\d{1,40}"
_FRAC = r"\\[dt]?frac\s*(?:\{(\d{1,40})\}\s*\{(\d{1,40})\}|(\d)\s*(\d))"
_PLAIN = re.compile(rf"({_DIGITS})?(?:\.(\d{{1,40}}))?(?:[eE]([+-]?\d{{1,3}}))?")
_REPEATING = re.compile(
    r"(\d{1,40})?\.(\d{0,40})"
    r"(?:\\overline\s*\{(\d{1,40})\}|\\dot\s*\{?(\d)\}?(?:(\d{0,40})\\dot\s*\{?(\d)\}?)?)"
)
_RATIO = re.compile(r"(?:(\d{1,40})\s+)?(\d{1,40})\s*/\s*(\d{1,40})")
_LATEX_RATIO = re.compile(rf"(\d{{1,40}})?\s*{_FRAC}")
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16,
}  # fmt: skip
_IN_BASE = re.compile(
    r"([0-9a-zA-Z]{1,40})(?:\.([0-9a-zA-Z]{1,40}))?"
    r"_[{(\s]{0,4}(?:\\(?:text|math)[a-z]{0,6}\s*\{)?[(\s]{0,4}(?:base[\s}]*)?(\d{1,3}|[a-z]{3,7})[\s)}]*"
)
_WRAPPED = re.compile(
    r"\*\*(.+)\*\*|\\(?:text(?:bf|it)?|math(?:bf|rm)|bm)\s*\{([^{}]*)\}|\(([\d.,]+)\)", re.DOTALL
)
_FORMULA = re.compile(r"^\$|\$$")
UNKNOWN = re.compile(r"([a-zA-Z])\s*=\s*")
"""Name of the unknown in front of an answer: `x = 5`."""
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,?\s*\\[!,]|[ \u00a0\u2009\u202f])\s*(?=\d{3}(?!\d))")
_SIGNS = "\u20ac\u00a3\u00a5\u00a2"
_LEAD = re.compile(
    rf"(?:(\\?\$|[{_SIGNS}])\s*([-+\u2212]?)|([-+\u2212]?)\s*(\\?\$|[{_SIGNS}])?)\s*"
)
"""Money and sign in front of a number, in either order."""
_DEGREE = (
    r"(?:\^?\s*\\circ|\^\s*\{\s*\\circ\s*\}|\u00b0)"
    r"(?:\s*(?:\\(?:text|mathrm|rm)\s*)?\{?\s*[CFK]\s*\}?)?"
)
_DEGREES = re.compile(r"(?:[\s^{]*\\circ\s*\}?|\u00b0)\W*(?:(?:text|mathrm|rm)\W+)?([cfk])?\W*")
_NAMED_UNIT = (
    r"((?:(?:square|sq\.?|cubic)\s+)?[^\W\d_]{2,40}(?:\s+per\s+[^\W\d_]{1,40})?"
    r"|(?:[dghlms]|[^\W\d_]{2,40})/(?:[dghlms]|[^\W\d_]{2,40})(?:\^\{?[23]\}?)?)"
)
_UNIT = re.compile(
    r"(?:\s|\\[,;! ])*(?:\\(?:text|mathrm)\s*\{\s*([^{}\d]{1,40}?(?:\^[23])?)\s*\}"
    rf"|\\,?\s+{_NAMED_UNIT}"
    rf"|\s{_NAMED_UNIT}|(\\?%|[{_SIGNS}]|{_DEGREE}))(?:\$?\^\{{?([23])\}}?)?"
)
_SCALE = re.compile(
    r"(?:\s|\\[,;! ]|~)*(?:\\(?:text|mathrm)\s*\{\s*)?"
    r"(hundred|thousand|million|billion|trillion|dozen|half|halve|third|fifth|tenth|hundredth"
    r"|thousandth)s?(?![^\W_])\s*(\}?)",
    re.IGNORECASE,
)
"""A word behind a number that multiplies it; it begins the text in which the unit may follow."""
_SCALES = {
    "hundred": Fraction(100), "thousand": Fraction(1000), "million": Fraction(10**6),
    "billion": Fraction(10**9), "trillion": Fraction(10**12), "dozen": Fraction(12),
    "half": Fraction(1, 2), "halve": Fraction(1, 2), "third": Fraction(1, 3),
    "fifth": Fraction(1, 5), "tenth": Fraction(1, 10), "hundredth": Fraction(1, 100),
    "thousandth": Fraction(1, 1000),
}  # fmt: skip
_RATE = re.compile(r"\s*/\s*|\s+per\s+")
_POWERS = {"square": "2", "sq": "2", "cubic": "3"}
_RAISED = str.maketrans({"\u00b2": "^2", "\u00b3": "^3"})
_NO_UNITS = frozenset(
    {
        "and", "choose", "cubed", "factorial", "inverse", "ln", "log", "minus", "mod", "negative",
        "or", "over", "pi", "plus", "prime", "root", "sqrt", "squared", "times", "to",
    }
)  # fmt: skip
_ALIKE = {
    name: names[0]
    for names in (
        ("m", "meter", "metre"), ("km", "kilometer", "kilometre"), ("mi", "mile"), ("yd", "yard"),
        ("cm", "centimeter", "centimetre"), ("mm", "millimeter", "millimetre"), ("g", "gram"),
        ("ft", "foot", "feet"), ("inch", "in", "inche"), ("kg", "kilogram"),
        ("lb", "pound", "\u00a3"), ("mg", "milligram"), ("ml", "milliliter", "millilitre"),
        ("h", "hr", "hour"), ("min", "minute"), ("s", "sec", "second"), ("yr", "year"),
        ("day", "d"), ("l", "liter", "litre"), ("degree", "\\circ", "^\\circ", "\u00b0"),
        ("%", "\\%", "percent", "pct", "percentage"), ("dollar", "usd", "buck"),
        ("euro", "eur", "\u20ac"),
        ("cent", "\u00a2"), ("yen", "\u00a5"), ("degree c", "degrees celsius", "celsius"),
        ("degree f", "degrees fahrenheit", "fahrenheit"), ("mi/h", "mph"), ("km/h", "kph", "kmh"),
    )
    for name in names
}  # fmt: skip
_LETTER_UNIT = re.compile(
    r"(.*[\d}])(?:\s+([dghlms])|\s*("
    + "|".join(sorted((name for name in _ALIKE if name.isalpha()), key=len, reverse=True))
    + r")s?)(?:\^\{?[23]\}?)?\s*",
    re.DOTALL,
)
"""A number with a unit of one letter, or one without a blank: either may be unknowns as well."""
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
        """Whether the two are the same number; one of them may leave its unit out.

        50% equals 0.5 and 1/2, and also 50, where the percent sign may have been left out. It is
        never left out of a fraction: 0.25% is not 1/4.
        """
        if "%" in (self.unit, other.unit) and "" in (self.unit, other.unit):
            percent, bare = (self, other) if self.unit else (other, self)
            places = None if percent.places is None else percent.places + 2
            if Number(percent.value / 100, places, "").equals(bare):
                return True
            is_ratio = any(n.places is None and n.value.denominator > 1 for n in (self, other))
            return not is_ratio and percent.value == bare.value
        if self.unit and other.unit and self.unit != other.unit:
            shorter, longer = sorted((self.unit, other.unit), key=len)
            if not (shorter == "degree" and longer.startswith("degree ")):
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
    `0.\overline{3}`, `101_2`, `101_{\text{two}}`, `5\text{ km}`, `30 minutes`, `2 million`,
    `**73**` and `\textbf{(073)}`.
    """
    plain = _THOUSANDS.sub("", unwrapped(text))
    lead = _LEAD.match(plain)
    assert lead is not None, "it may be empty"
    sign = -1 if (lead[2] or lead[3]) in ("-", "\u2212") else 1
    money = _money(text, lead[1] or lead[4])
    unsigned = plain[lead.end() :]
    for read in (_plain, _repeating, _ratio, _latex_ratio):
        found = read(unsigned)
        if found is not None:
            value, places, end = found
            scale, behind = _scaled(unsigned[end:])
            unit = _unit(behind)
            if unit is not None:
                value *= sign * scale
                return Number(value, places if scale == 1 else None, unit or money)
    whole = _in_base(unsigned)
    return None if whole is None else Number(sign * whole, None, "")


def _money(text: str, symbol: str | None) -> str:
    """The unit that a sign in front of a number tells; two dollars stand around a formula."""
    if symbol in (None, "$"):
        is_price = text.count("$") == 1 and (symbol or text.lstrip().startswith("$"))
        return "dollar" if is_price else ""
    return _ALIKE.get(symbol, "dollar")


def _in_base(text: str) -> Fraction | None:
    """The value of a number with its base, such as `1.1_2`."""
    found = _IN_BASE.fullmatch(text)
    if found is None:
        return None
    whole, fraction, base = found[1], found[2] or "", found[3]
    if whole.isalpha() and len(whole) == 1:  # a term of a sequence, a_11
        return None
    try:
        named = _BASES.get(base) or int(base)
        return Fraction(int(whole + fraction, named), named ** len(fraction))
    except ValueError:  # no such base, or other digits than it has
        return None


def _scaled(behind: str) -> tuple[Fraction, str]:
    """What a word such as `million` multiplies a number by, and what stands behind it."""
    found = _SCALE.match(behind)
    if found is None:
        return Fraction(1), behind
    rest = behind[found.end() :]
    if "{" in found[0] and not found[2]:  # in one text with the unit
        rest = rf"\text{{{rest}"
    elif rest:
        rest = f" {rest}"
    return _SCALES[found[1].lower()], rest


_DASH = re.compile(r"(?<![\w)}\]])[\u2010-\u2015\ufe63\uff0d](?=\s*[\w.\\$(])")
"""A dash in front of a number is a minus; one between two may be a range."""
_FRACTION = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_POWER = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_ROOT = re.compile(r"\u221a\s*(\d[\d.]*|[a-zA-Z]|\([^()]{0,100}\))")
_LATEX = str.maketrans({"\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u221e": r"\infty "})


def in_latex(text: str) -> str:
    """An answer in LaTeX where it has signs, or is typed in a way, that math-verify misreads.

    These are signs such as \u00bd, what is typed as `pi/2`, `sin(x)`, `x**2`, `2^-3` or `<1, 2>`,
    and the degrees of an angle.
    """
    if not text.isascii():
        spelled = _FRACTION.sub(_fraction, _DASH.sub("-", text))
        text = _ROOT.sub(r"\\sqrt{\1}", _POWER.sub(_power, spelled)).translate(_LATEX).strip()
    for typed, latex in _TYPED:
        text = typed.sub(latex, text)
    return text


_TYPED = (
    (re.compile(r"(?<=[\w)}])\*\*(?=[\w({\\-])"), "^"),
    (re.compile(r"\^\s*(\d{1,40}|[a-zA-Z])\s*\^\s*(\d{1,40}|[a-zA-Z])"), r"^{\1^{\2}}"),
    (re.compile(r"(?<![a-zA-Z\\])sqrt\s*(\d{1,40}|[a-zA-Z](?![a-zA-Z]))"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![a-zA-Z\\])sqrt(?=\s*\{)"), r"\\sqrt"),
    (re.compile(r"\^\s*(-\d{1,40}(?:\.\d{1,40})?|-[a-zA-Z]|\d{1,40}\.\d{1,40})"), r"^{\1}"),
    (
        re.compile(
            r"(?<![a-zA-Z\\])(pi(?![a-zA-Z])|(?:(?:arc)?(?:sin|cos|tan)|cot|sec|csc|log|ln)"
            r"(?=\s*[({\\^\d]|\s+[a-zA-Z]))"
        ),
        r"\\\1 ",
    ),
    (
        re.compile(r"\A[\s$]*(?:\\langle|<)([^<>]{1,200},[^<>]{1,200}?)(?:\\rangle|>)[\s$]*\Z"),
        r"(\1)",
    ),
    (
        re.compile(
            r"(\\(?:sin|cos|tan|cot|sec|csc)\s*(?:\\left)?[({]?\s*)(\d{1,40}(?:\.\d{1,40})?)"
            rf"\s*{_DEGREE}"
        ),
        r"\1{\\frac{\2\\pi}{180}}",
    ),
)


def _fraction(sign: re.Match[str]) -> str:
    over, under = unicodedata.normalize("NFKC", sign[0]).split("\u2044")
    return rf"\frac{{{over}}}{{{under}}}"


def _power(signs: re.Match[str]) -> str:
    digits = unicodedata.normalize("NFKC", signs[0])
    return f"^{digits}" if len(digits) == 1 else f"^{{{digits}}}"


def with_letter_unit(text: str) -> str:
    r"""An answer such as `5 m` or `5km` with its unit as text; any other as it is."""
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
    dotted = "".join(filter(None, found.group(4, 5, 6)))
    whole, fixed, period = found[1] or "0", found[2], found[3] or dotted
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
    if is_degree := _DEGREES.match(named):
        scale = is_degree[1]
        return f"degree {scale}" if scale else "degree"
    first, _, rest = named.partition(" ")
    if rest and (of_word := _POWERS.get(first.removesuffix("."))):
        named, power = rest.strip(), of_word
    elif named[-2:] in ("^2", "^3"):
        named, power = named[:-2], named[-1]
    unit = "/".join(map(_one_unit, _RATE.split(named)))
    return f"{unit}^{power}" if power else unit


def _one_unit(named: str) -> str:
    single = named.removesuffix("s") if len(named) > len("ms") else named
    return _ALIKE.get(named, _ALIKE.get(single, single))
