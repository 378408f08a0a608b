r"""Whether two mathematical answers mean the same, decided within a bounded time.

The final answer of a text is the content of its last \boxed{...}; without one, of its last line
`ANSWER: ...` (the form of Inspect's tasks and simple-evals) or `#### 72` (GSM8K's), or the text
itself. Single numbers are compared here, exactly (`math_numbers`). Everything else goes to
math-verify (Kydlicek 2025, with latex2sympy2-extended) in a separate process with a limit on
processor time (`comparing`): an answer such as 9^{9^{9^{9}}} is then wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from espalier.rewards.comparing import Comparers
from espalier.rewards.math_numbers import (
    UNKNOWN,
    Number,
    bare_formula,
    in_latex,
    read_number,
    unwrapped,
    with_letter_unit,
)

_BOXED = r"\boxed"
_BRACE = re.compile("[{}]")

_ANSWER_LINE = re.compile(
    r"^(?:[ \t*_#>-]*(?:final )?answer[*_]*:(.+)|#### (-?[\d.,]+)\s*)$",
    re.IGNORECASE | re.MULTILINE,
)


def final_answer(text: str) -> str:
    """Return the last closed box's content, else the last answer line's, else `text`; stripped."""
    boxed = last_boxed(text)
    if boxed:
        return boxed.strip()
    lines = _ANSWER_LINE.findall(text)
    return "".join(lines[-1]).strip(" \t\r*") if lines else text.strip()


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}`, nested braces included, or None."""
    opened: list[int] = []
    start, end = -1, -1
    for brace in _BRACE.finditer(text):
        place = brace.start()
        if brace[0] == "{":
            opened.append(place)
        elif opened:
            begun = opened.pop()
            is_box = text[max(0, begun - len(_BOXED)) : begun] == _BOXED
            if is_box and begun > start:  # of nested boxes the inner one, which is closed first
                start, end = begun, place
    return None if start < 0 else text[start + 1 : end]


MAX_ANSWER_CHARACTERS = 400
"""A longer answer is wrong: no gold answer of the known data sets comes near it."""

_COMPARE_WITHIN_S = 5
"""Limit of processor time."""
_BOUND = re.compile(
    r"[\s$]*(?:[a-zA-Z]\s*)?(?:!=|[<>~\u00ac\u2243\u2248\u223c\u2260\u2264-\u226b\u226e-\u2279]"
    r"|\\(?:n?(?:[lg]eq?q?|[lg]eq?slant|less|gtr)|[lg]t|ll|gg|less(?:sim|approx)|gtr(?:sim|approx)"
    r"|neq?|neg|lnot|not|approx|sim|simeq|propto)(?![a-z]))"
)
"""What makes of the number behind it a bound, an estimate or another number; math-verify reads it
as the number."""
_WORD = re.compile(r"[^\W\d_]{2,40}")
_LONGEST_PRODUCT = 3
"""Letters that may be unknowns in any order, of capitals one less: `XI` and `CAT` are words. More
are a product where they are in the order of the alphabet, as in `abcd`."""
_ROMAN = re.compile("[IVXLCDM]{2,}")
_IS_LATEX = re.compile(r"\$|\\\(|\\\[|\\boxed")


def math_equivalent(answer: str | None, gold: Iterable[str]) -> bool:
    r"""Whether `answer` means the same as one of the accepted answers.

    Args:
        answer: LaTeX or plain text, of whose `\boxed{...}` the last one counts; None is wrong.
        gold: accepted answers, in the same forms.

    Raises:
        ComparerError: math-verify is not installed, or does not start.
    """
    if answer is None or len(answer) > MAX_ANSWER_CHARACTERS:
        return False
    said = _compared(answer)
    return bool(said) and any(_same(said, _compared(accepted)) for accepted in gold)


_FULL_STOP = re.compile(r"(?<=[^\s.])\.(?=\$?\Z)")
"""One that ends a sentence: math-verify reads no formula with it. Three leave something out."""


_DRAWN = re.compile(
    r"\\(?:underline|(?:textcolor|colorbox)\s{0,4}\{[^{}]*\})\s{0,4}\{([^{}]*)\}"
    r"|\\color\s{0,4}\{[^{}]*\}"
)
"""A line below, or a colour."""
_TIE = re.compile(r"~(?!\s*[\d.$+-])(?!\\[dt]?frac)|(?<!\\)\\(?: |\Z)")
"""A blank of LaTeX; in front of a number it is "about"."""
_TIMES_TEN = re.compile(r"(?<=\d) ?[xX\u00d7] ?(?=10\^)")
_LEFT_OUT = re.compile(r"\A\$?([^\\]*)\\[lc]?dots[\s$.]*\Z")
"""Digits that are not written, which math-verify reads as none."""


def _compared(text: str) -> str:
    found = _FULL_STOP.sub("", final_answer(text))
    drawn = _DRAWN.sub(lambda part: part[1] or "", found)
    spaced = _TIMES_TEN.sub(r" \\cdot ", _TIE.sub(" ", drawn))
    return in_latex(_LEFT_OUT.sub(r"\1...", spaced).strip())


_SET = re.compile(r"[\s$]*(?:\\left)?\\\{")
_TUPLE = re.compile(r"[\s$]*(?:\\left)?\(")


def _same(answer: str, gold: str) -> bool:
    pair = answer, gold
    if answer == gold:
        return True
    if (is_same := _compared_as_words(answer, gold)) is not None:
        return is_same
    said, wanted = _numbers(answer, gold)
    if _names_another_unknown(answer, gold):
        said = wanted = None
    if wanted is not None and _BOUND.match(answer):
        return False
    if said is not None and wanted is not None:
        return said.equals(wanted)
    if any(_SET.match(one) and _TUPLE.match(other) for one, other in (pair, pair[::-1])):
        return False  # math-verify takes a set for a tuple of any order
    return bool(_comparers().compare(_as_latex(answer), _as_latex(gold)))


def _numbers(answer: str, gold: str) -> tuple[Number | None, Number | None]:
    """The numbers that an answer and its gold are, None for what is none.

    The letters of `5 m` and `5km` are a unit where the other side has one too, else unknowns.
    """
    said, wanted = read_number(answer), read_number(gold)
    in_units = [
        number or read_number(with_letter_unit(text))
        for number, text in ((said, answer), (wanted, gold))
    ]
    if all(number is not None and number.unit for number in in_units):
        said, wanted = in_units
    return said, wanted


def _compared_as_words(answer: str, gold: str) -> bool | None:
    """Whether two words are the same, or None where the gold may be a product of unknowns.

    math-verify reads any word as the product of its letters, so that their order would not count.
    """
    said, wanted = unwrapped(answer), unwrapped(gold)
    are_words = _WORD.fullmatch(said) and _WORD.fullmatch(wanted)
    if not are_words or _names_another_unknown(answer, gold):
        return None
    if said.casefold() == wanted.casefold():
        return True if said == wanted or len(wanted) > _LONGEST_PRODUCT else None
    if wanted.isupper() and (len(wanted) >= _LONGEST_PRODUCT or _ROMAN.fullmatch(wanted)):
        return False
    is_short = len(wanted) <= _LONGEST_PRODUCT or list(wanted) == sorted(wanted)
    if not is_short or len(set(wanted)) < len(wanted):
        return False
    # unknowns of either case, as in the interest Prt, are others than those of the other
    is_mixed = wanted not in (wanted.lower(), wanted.upper())
    return False if is_mixed and sorted(said) != sorted(wanted) else None


def _names_another_unknown(answer: str, gold: str) -> bool:
    """Whether one answer is `y = ...` and the other `x = ...`."""
    said, wanted = (UNKNOWN.match(bare_formula(text)) for text in (answer, gold))
    return said is not None and wanted is not None and said[1] != wanted[1]


@cache
def _comparers() -> Comparers:
    return Comparers("math", within_s=_COMPARE_WITHIN_S)


_EXPONENT = re.compile(r"(?<![\w.\\])(\d{1,40}(?:\.\d{1,40})?)[eE]([+-]?\d{1,3})(?!\w)")


def _as_latex(text: str) -> str:
    spelled = _EXPONENT.sub(r"\1 \\cdot 10^{\2}", text)  # math-verify reads Euler's number
    return spelled if _IS_LATEX.search(spelled) else rf"\boxed{{{spelled}}}"
