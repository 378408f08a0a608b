"""Answer verifiers: exact match and F1 of short answers.

What is rewarded and scored by default is a rule of our own, after SQuAD's (Rajpurkar et al. 2016,
arXiv:1606.05250), whose own form is `squad_form`. As there, case, punctuation, English articles and
white space do not count. In contrast to it

- numbers are compared as numbers: 1.0 is 1, while 1.5 is not 15 and -5 is not 5; of one that ends
  an answer behind a word every digit counts: Python 3.1 is not Python 3.10;
- a bound, an estimate or a percentage is another number: <5, ~5, 5+ and 5% are not 5;
- presentation does not count: typographic quotes and dashes, blanks without width, accents of Latin
  and Greek letters that one of the two leaves out, since an uncased policy cannot write them; but
  H\u00e0 is not H\u1ea1, and marks of other scripts are letters;
- signs that name something count: A+ and A* are not A, C# is not C, .NET is not NET, x^2 not x2,
  x+y not x-y, m/s not ms, n! not n;
- an article ends no answer: Hepatitis A is not Hepatitis;
- an answer of which nothing would remain ("A", "The", "?") is compared as it stands.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby

from espalier.records.folding import (
    ARTICLES,
    IGNORED,
    THIN_THOUSANDS,
    fold_accents,
    have_like_accents,
)

_ARTICLE_WORDS = frozenset({"a", "an", "the"})
_PUNCTUATION = frozenset(string.punctuation)
_SHOWN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u00b4`", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "-"),
        **dict.fromkeys("\u2044\u2215", "/"),
        **dict(zip("\u066a\u066b\u066c", "%.,", strict=True)),  # of Arabic numbers
    }
)
_DIGIT = re.compile(r"(?![0-9])\d")
"""A digit of another script than Latin."""
_SUPERSCRIPTS = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_SUBSCRIPTS = re.compile("(\\d?)([\u2080-\u2089]+)")
"""One behind a digit is the base of a number."""
_FRACTION_SIGN = "[\u00bc-\u00be\u2150-\u215f\u2189\u2460-\u249b\u2776-\u2793]"
"""Signs of whole numbers: beside a digit they are no further digit, 1\u00bd is not 11/2."""
_BESIDE_SIGN = re.compile(rf"(?<=\d)(?={_FRACTION_SIGN})|(?<={_FRACTION_SIGN})(?=\d)")
_COINS = "\u20a0-\u20bf\u00a3\u00a5\u0e3f\u09f3"
"""Signs of money but the dollar, which is punctuation."""
_SIGNED_MONEY = re.compile(rf"^([+-])(?:\$|([{_COINS}]))(?=\.?\d)")
_MONEY = re.compile(rf"[{_COINS}](?=[+-]?\.?\d)")
_BOUND = re.compile(r"(?:[<>]=?|!=|=[<>]|~)(?=[+-]?\$?\.?\d[^<>]*$)")
"""A sign that makes a number a bound or an estimate, but no brackets around it."""
_BLANK_IN_SIGNED = re.compile(
    r"(?:(?<=\s)|^)([<>~]|[<>!]=|=[<>])\s(?=[+-]?\$?\.?\d)|(?<=\d)\s(?=%)"
)
"""The blank between a number and a sign that belongs to it: `> 5`, `5 %`."""
_PERCENT = re.compile(r"(?<=\d)[ -]?per ?cent\b")
_WIDE_NUMBER = re.compile(r"\s*[+-]?\$?[1-9]\d{0,2}(?: \d{3}){1,12}(?:\.\d{1,40})?\s*")
"""An answer that is one number with a blank in front of each three digits."""
_NUMBER = re.compile(
    r"[+-]?(?=\.?\d)(?:[1-9]\d{0,2}(?:,\d{3}){1,12}|[1-9]\d?(?:,\d{2}){1,12},\d{3}|\d{1,40})?"
    r"(?:\.\d{1,40})?(?:e[+-]?\d{1,2})?"
)
_BETWEEN = ("^", "<", ">", "<=", ">=", "+", "=", "!=", "*", "/", "_")
"""Signs between letters or numbers that count."""
_POINTED = re.compile(r"(?<=[<>=+])\.(?=\d)")
"""The point of a number without a digit in front, behind a sign: p<.5."""
_MONEY_BEHIND = re.compile(rf"(?<!\S)([+-]?[\d.,]{{1,40}}) ?([{_COINS}])(?!\S)")
_UNIT_BEHIND = re.compile(
    r"(?<!\S)([+-]?\d{1,40}(?:[.,]\d{1,40}){0,13})"
    r"(?=(?:[ap]m|[kcm]m|[km]g|ml|ft|mi|lbs?|[km]ph|[kmg]?hz|[kmgt]b|[km]w|min|sec|hrs?|yrs?|bce?)\b)"
)
"""A number with a unit that is written behind it with or without a blank."""
_STAR = re.compile(r"(?<!\d)\*|\*(?!\d)")
_NAMING_DOT = re.compile(r"(?<!\.)\.$")
_SHORT_NAME = 2
"""Letters of a name that a minus or a star may end, such as a blood group's."""


def normalize_answer(text: str) -> str:
    """Return the form in which answers are compared; may be empty."""
    return _without_articles(_words(text))


def squad_form(text: str) -> str:
    """Return SQuAD's normalisation only, with accents; may be empty."""
    lowered = text.lower()
    unpunctuated = "".join(char for char in lowered if char not in _PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", unpunctuated).split())


def squad_match(answer: str, gold: Iterable[str]) -> bool:
    """Whether `answer` equals one of the accepted answers by SQuAD's own rule."""
    return squad_form(answer) in {squad_form(accepted) for accepted in gold}


def exact_match(answer: str | None, gold: Iterable[str]) -> bool:
    """Whether `answer` equals one of the accepted answers; a missing answer never does."""
    if answer is None:
        return False
    said = _forms(answer)  # once: a long answer, of which there may be dozens of accepted ones
    return any(_same(said, _forms(accepted)) for accepted in gold)


def occurs_in(answer: str, text: str) -> bool:
    """Whether the words of `answer` occur consecutively in `text`, in the form of answers.

    An answer without words never occurs.
    """
    wanted, held = _words(answer), _words(text)
    forms = (_without_articles, " ".join)
    return any(
        words and f" {words} " in f" {form(held)} " for form in forms if (words := form(wanted))
    )


def token_f1(answer: str | None, gold: Iterable[str]) -> float:
    """Return the best word-overlap F1 of `answer` against the accepted answers, 0-1."""
    if answer is None:
        return 0.0
    said = _forms(answer)
    said_words = Counter(said[0].split())

    def overlap(accepted: _Forms) -> float:
        gold_words = Counter(accepted[0].split())
        if not said_words or not gold_words:
            return float(_same(said, accepted))
        shared = (gold_words & said_words).total()
        return 2 * shared / (said_words.total() + gold_words.total())

    return max((overlap(_forms(accepted)) for accepted in gold), default=0.0)


_Forms = tuple[str, str, str]
"""An answer without articles, with them, and as it stands."""


def _forms(text: str) -> _Forms:
    narrow = _narrow(text)
    words = _words(narrow)
    return _without_articles(words), " ".join(words), narrow.strip().casefold()


def _same(answer: _Forms, accepted: _Forms) -> bool:
    """Whether the two are equal in the first form in which something remains of both."""
    pairs = zip(answer, accepted, strict=True)
    is_same = next((said == wanted for said, wanted in pairs if said and wanted), False)
    return is_same and have_like_accents(answer[-1], accepted[-1])


def _narrow(text: str) -> str:
    """A text, without its blanks if it is one number such as 10 000."""
    return text.replace(" ", "") if _WIDE_NUMBER.fullmatch(text) else text


def _without_articles(words: Sequence[str]) -> str:
    last = len(words) - 1  # an article stands in front of something; Hepatitis A ends in a name
    kept = (w for n, w in enumerate(words) if w not in _ARTICLE_WORDS or n == last > 0)
    return " ".join(kept)


def _words(text: str) -> tuple[str, ...]:
    """The words of an answer, numbers in one spelling."""
    digits = _DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), IGNORED.sub("", text))
    raised = _SUPERSCRIPTS.sub(lambda found: f"^{_plain(found[0])}", _BESIDE_SIGN.sub(" ", digits))
    lowered = _SUBSCRIPTS.sub(
        lambda found: (found[1] and f"{found[1]}_") + _plain(found[2]), raised
    )
    shown = THIN_THOUSANDS.sub("", lowered.translate(_SHOWN))
    folded = " ".join(fold_accents(shown).translate(_SHOWN).casefold().split())
    if folded.count("*") > 1:  # Markdown
        folded = _STAR.sub("", folded)
    spaced = _UNIT_BEHIND.sub(r"\1 ", _MONEY_BEHIND.sub(r"\2\1", folded))
    signed = _BLANK_IN_SIGNED.sub(r"\1", spaced)
    signed = _POINTED.sub("0.", _PERCENT.sub("%", signed))
    # a mark may stand behind punctuation, and a letter after that
    tokens = signed.split()
    is_label = len(tokens) > 1 and tokens[-2].isalpha()
    words = [*map(_word, tokens[:-1]), *(_word(last, is_label=is_label) for last in tokens[-1:])]
    return tuple(filter(None, map(fold_accents, words)))


def _plain(digits: str) -> str:
    return unicodedata.normalize("NFKC", digits)


def _word(token: str, *, is_label: bool = False) -> str:
    """A word without its punctuation, or a number in its one spelling; "" if nothing remains.

    Args:
        token: what stands between blanks.
        is_label: whether it ends an answer behind a word, as in Python 3.10; a number is then kept
            as it is written, but for the commas of thousands.
    """
    token = _SIGNED_MONEY.sub(lambda found: (found[2] or "") + found[1], token)
    if sign := _BOUND.match(token) or _MONEY.match(token):
        return sign[0] + _word(token[sign.end() :])
    start, end = 0, len(token)
    while start < end and _is_punctuation(token[start]) and not _begins_number(token, start):
        start += 1
    while end > start and _is_punctuation(token[end - 1]):
        end -= 1
    inner = token[start:end]
    behind = _naming_signs(inner, token[end:])
    if _NUMBER.fullmatch(inner):
        if is_label:
            return inner.replace(",", "") + behind
        return str(Fraction(inner.replace(",", ""))) + behind
    dot = "." if inner[:1].isalpha() and _NAMING_DOT.search(token[:start]) else ""
    return dot + "".join(_kept(inner)) + behind


def _kept(inner: str) -> Iterator[str]:
    """The parts of a word that count: all but punctuation, and that inside of a number.

    12:30 and 1914-1918 keep theirs, and so does what has more of it in a row, such as 1::2, a
    power, such as x^2, a bound, such as p<0.05, and a sum, such as x+y.
    """
    end = 0
    for is_sign, run in groupby(inner, _is_punctuation):
        part = "".join(run)
        start, end = end, end + len(part)
        before, after = inner[start - 1 : start], inner[end : end + 1]
        is_inside = before.isdigit() and after.isdigit()
        is_between = part in _BETWEEN and before.isalnum() and after.isalnum()
        begins_number = start == 0 and _begins_number(inner, 0)
        if not is_sign or is_inside or is_between or begins_number:
            yield part


def _naming_signs(word: str, behind: str) -> str:
    """The signs behind a word that are part of it: C++, F#, Ca2+, 5%, the one of A-, AB- or C*."""
    if word.isalpha() and len(word) <= _SHORT_NAME and behind[:1] in ("-", "*"):
        return behind[:1]
    if len(word) == 1 and word.isalpha() and behind[:1] == "!":
        return "!"  # a factorial; a longer word only has its sentence's
    signs = "+#" if word[-1:].isalpha() else "+%" if word[-1:].isdigit() else ""
    return behind[: len(behind) - len(behind.lstrip(signs))] if signs else ""


def _begins_number(token: str, place: int) -> bool:
    """Whether a sign or a decimal point there belongs to the number behind it."""
    behind = token[place + 1 : place + 3]
    if token[place] in "+-":
        return behind[:1].isdigit() or (behind[:1] == "." and behind[1:].isdigit())
    return token[place] == "." and behind[:1].isdigit()


def _is_punctuation(char: str) -> bool:
    return char in _PUNCTUATION or unicodedata.category(char)[0] == "P"
