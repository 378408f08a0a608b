"""Folding of text, so that spellings of a name compare equal, and finding names in text.

Texts are compared by three rules, of which the first two are here:

- identity, `folded_name`: which names are one entity. Words, numbers and the signs that name
  something count: -5 is not 5, 1.5 is not 15, C++ is not C, p<5 is not p>5. Case, accents of Latin
  and Greek letters, characters without a width, and all other punctuation do not.
- search, `search_words`: which text is found. Words alone count, so that "C" finds C++ too; of
  scripts that are written without blanks, letters and pairs of letters.
- which answers are equal is the rule of `espalier.rewards.answers`, which knows that 1.0 is 1.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise, zip_longest

import regex

_WORD = re.compile(r"\w+")
_FOLDED_SCRIPTS = ("LATIN", "GREEK")
_STRESS = "\u0300\u0301"
"""Marks that other scripts use for the stress alone."""
_ALIKE = str.maketrans("\u0451\u0401", "\u0435\u0415")
"""Letters that one language writes in place of each other: Russian \u0451 and \u0435."""
_APOSTROPHES = str.maketrans("", "", "'\u2019\u2018\u02bb\u02bc`\u00b4")
IGNORED = regex.compile(r"[\p{Default_Ignorable_Code_Point}\u00a9\u00ae\u2120\u2122]+")
"""Characters that caseless matching ignores (Unicode's NFKC_Casefold): soft hyphens, joiners and
blanks without a width say where a word may be broken, or how its letters are drawn. And the marks
of rights in a name, of which a decomposition would make the letters "tm"."""
EMPTY_WORDS = frozenset({"of", "the", "a", "an", "is", "in", "that"})
"""Words that do not help to distinguish lines or titles."""


def fold(text: str) -> str:
    """Return lower case without accents, apostrophes or ignored characters.

    "N'Djamena" becomes "ndjamena".
    """
    text = text.translate(_APOSTROPHES)
    if text.isascii():
        return text.lower()
    return fold_accents(IGNORED.sub("", text)).lower()


def fold_accents(text: str) -> str:
    """Drop the marks of Latin and Greek letters, of stress and of Russian \u0451; compose others.

    Marks of other scripts are letters: without them three words of Hindi may be one, and Japanese
    b, p and h.
    """
    kept: list[str] = []
    base_is_folded = False
    for char in unicodedata.normalize("NFKD", text):
        if not unicodedata.combining(char):
            base_is_folded = unicodedata.name(char, "").startswith(_FOLDED_SCRIPTS)
            kept.append(char)
        elif not base_is_folded and char not in _STRESS:
            kept.append(char)
    return unicodedata.normalize("NFC", "".join(kept)).translate(_ALIKE)


def have_like_accents(one: str, other: str) -> bool:
    """Return whether each Latin letter has the other's accents, or some of them, in equal words.

    So H\u00e0 and Ha are alike, H\u00e0 and H\u1ea1 are not. English articles are left out.
    """
    if one.isascii() or other.isascii():
        return True
    first, second = _accents(one), _accents(other)
    pairs = zip(first, second, strict=False)
    return len(first) != len(second) or all(a <= b or b <= a for a, b in pairs)


ARTICLES = re.compile(r"\b(a|an|the)\b")
"""Those of English."""


def _accents(text: str) -> list[set[str]]:
    """Return the accents of each Latin letter."""
    found: list[set[str]] = []
    is_latin = False
    for char in unicodedata.normalize("NFKD", ARTICLES.sub("", text.casefold())):
        if not unicodedata.combining(char):
            is_latin = "a" <= char <= "z"
            if is_latin:
                found.append(set())
        elif is_latin:
            found[-1].add(char)
    return found


_KATAKANA = r"[\p{Katakana}\u30fc]"
_SCRIPTS = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\u30fc\p{Hangul}\p{Bopomofo}\p{Yi}"
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}"
)
"""Scripts without blanks between words. Korean has blanks, but glues particles to its words."""
_UNSPACED = rf"[[{_SCRIPTS}]&&[\p{{L}}\p{{M}}\p{{Nl}}]]"
_LETTER = rf"(?:[{_UNSPACED}--\p{{M}}]\p{{M}}*)"
"""One letter of a script without blanks, with its marks."""
_SPACED = rf"[[\p{{L}}\p{{M}}\p{{N}}_]--{_UNSPACED}]"
_WORDS = rf"(?:[{_KATAKANA}&&\p{{L}}]+|{_LETTER}|{_SPACED}+)"
_EVERY_WORD = regex.compile(_WORDS, regex.V1)
_EVERY_LETTER = regex.compile(_LETTER, regex.V1)
_EVERY_PHRASE = regex.compile(r"[\p{L}\p{M}\p{N}_]+")
_EVERY_RUN = regex.compile(rf"{_LETTER}+|{_SPACED}+", regex.V1)


def words(text: str) -> list[str]:
    """Return the folded words of `text`, in order: letters, digits and marks.

    Of scripts without blanks a word is a letter, and a run of katakana, which spells foreign names.
    """
    return _found(_EVERY_WORD, text)


def phrases(text: str) -> list[str]:
    """Return the folded words of `text`, those without blanks between them in one."""
    return _found(_EVERY_PHRASE, text)


def _found(pattern: regex.Pattern[str], text: str) -> list[str]:
    folded = fold(text)
    if folded.isascii():
        return _WORD.findall(folded)
    return [word for word in pattern.findall(folded) if any(map(str.isalnum, word))]


def search_words(text: str) -> list[str]:
    """Return the words by which `text` is found, in order.

    Of scripts without blanks these are letters and pairs of neighbours, of which an index can tell
    words without a dictionary (as Lucene's CJK analyser has it).
    """
    if text.isascii():
        return words(text)
    return list(chain.from_iterable(map(_of_run, _found(_EVERY_RUN, text))))


def _of_run(run: str) -> Iterable[str]:
    letters = _EVERY_LETTER.findall(run)
    pairs = map("".join, pairwise(letters))
    return filter(None, chain.from_iterable(zip_longest(letters, pairs))) if letters else (run,)


def content_words(text: str, divide: Callable[[str], list[str]] = words) -> list[str]:
    """Return the folded words without `EMPTY_WORDS`; all words if nothing else is left."""
    found = divide(text)
    return [word for word in found if word not in EMPTY_WORDS] or found


DASHES = "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
"""What is typed or typeset for a minus; a long dash parts sentences."""
_TYPED = str.maketrans(dict.fromkeys(DASHES, "-") | dict.fromkeys("\u2044\u2215", "/"))
THIN_THOUSANDS = re.compile("(?<=\\d)[\u00a0\u2009\u202f](?=\\d{3}(?!\\d))")
"""What parts thousands and is no blank between words: 1\u202f234 is 1,234."""
_RAISED = re.compile("[\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_VULGAR_FRACTION = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e\u2189])")
_POINT = r"[.,:/\u066b]"
_AHEAD = r"(?=\s?[+-]?\.?\d)"
_NAME_WORD = regex.compile(
    rf"""
    [a-zA-Z]++(?=[\s.,:;)]|\Z)                # most words of English, for speed
  | (?:
      (?:(?<!{_SPACED})-|\+)?                 # sign and point of a number: -5 .5
      (?:(?<![{_SPACED}.])\.)?
      (?=\d)
    | (?<![^\s(\["])\.(?=\p{{L}})             # .NET
    )?
    (?:
      (?<!\d{_POINT})                   # 1.5 3/4 12:30 1,000,000; a date has three numbers
      (?: \d{{1,3}}(?:,\d{{3}})++(?:\.\d++)?+
        | {_SPACED}++(?<=\d){_POINT}(?=\d){_SPACED}++
      )
      (?!{_POINT}?\d)
    | {_WORDS}
    )
    (?: (?<=\d[eE])[+-](?=\d){_SPACED}+   # 1e-6
      | \^[+-]?{_SPACED}+                     # 10^2
    )*
    (?: (?<=[{_SPACED}--\d])            # behind a word: C++ C# A- A*
      (?: \+\+ | \# | [\u266d-\u266f] | \+(?!\.?\d) )+
      | (?<=(?<![{_SPACED}*])[{_SPACED}&&\p{{L}}]{{1,2}})[-*](?![{_SPACED}*-])
    )?
  | (?:(?<!{_SPACED})[+-])?\p{{Sc}}{_AHEAD}   # beside a number: what it counts, compares, adds
  | (?: [<>]=? | (?<!{_SPACED})[\u2264\u2265\u2248\u00b1~] ){_AHEAD}
  | (?<=\d\s?)(?:[%\u066a\u2030\u00b0\p{{Sc}}]|\+(?!\.?\d))
  | [[\p{{So}}\p{{Sm}}]--[\x00-\x7f\u00b0]]   # a suit of cards, an arrow
    """,
    regex.V1 | regex.VERBOSE,
)
_NAMING = regex.compile(r"[\p{L}\p{N}\p{S}%\u066a\u2030]")
_MAYBE_SIGNED = re.compile(r"[\d+#*^_]|(?<![^\s(\[\"])\.[a-z]|\b[a-z]{1,2}-")
"""What ASCII text has wherever a sign may belong to a name: most lines have none of it."""


def name_words(text: str) -> list[str]:
    """Return the words of `text`, with the signs that tell names apart."""
    if text.isascii():
        folded = fold(text)
    else:
        text = IGNORED.sub("", text)
        joined = THIN_THOUSANDS.sub(",", text)
        raised = _RAISED.sub(lambda found: "^" + unicodedata.normalize("NFKC", found[0]), joined)
        folded = fold(_VULGAR_FRACTION.sub(" ", raised)).translate(_TYPED)
    if folded.isascii() and not _MAYBE_SIGNED.search(folded):
        return _WORD.findall(folded)
    return [word for word in _NAME_WORD.findall(folded) if _NAMING.search(word)]


def folded_name(name: str) -> str:
    """Return the key by which names are compared: two names are one entity if theirs are equal."""
    return " ".join(name_words(name))


_NUMBER = regex.compile(
    r"(?:(?:[<>]=?|[\u2264\u2265\u2248\u00b1~]) )?(?:[+-]?\p{Sc} )?"
    r"[+-]?(?:(?:\d{1,3}(?: \d{3})++|\d++(?:,\d{3})*+)(?:[.,\u066b]\d++)?|\.\d++|\d++/\d++)"
    r"(?:e[+-]?\d++)?(?: [%\u066a\u2030\u00b0+\p{Sc}])?"
)


def is_number(folded: str) -> bool:
    """Whether a folded name is a number: -5, 1,400, 1 400, 3/4, 1e6, 20 %, < 5, $ 2.50."""
    return _NUMBER.fullmatch(folded) is not None


def is_named_in(name: str, text: str) -> bool:
    """Whether `text` holds the name, whole; never for a name without words."""
    folded = folded_name(name)
    return bool(folded) and f" {folded} " in f" {folded_name(text)} "


class SpelledNames:
    """Finds names in text as they are spelled, as whole words, and the longest first."""

    def __init__(self, names: Iterable[str], *, ignores_case: bool = False) -> None:
        longest_first = sorted(names, key=len, reverse=True)
        spaced: list[str] = []
        unspaced: list[str] = []
        for name in longest_first:
            (unspaced if _touches_words(name) else spaced).append(re.escape(name))
        any_spaced, any_unspaced = ("|".join(each) or r"(?!)" for each in (spaced, unspaced))
        flags = re.IGNORECASE if ignores_case else re.NOFLAG
        self._any = re.compile(rf"(?<!\w)(?:{any_spaced})(?!\w)|(?:{any_unspaced})", flags)

    def found_in(self, text: str) -> Iterator[re.Match[str]]:
        """Yield every occurrence of a name in `text` that is no part of another name or number."""
        edges: NameEdges | None = None
        for match in self._any.finditer(text):
            edges = edges or NameEdges(text)
            if edges.hold(*match.span()):
                yield match

    def replaced(self, text: str, other: Callable[[str], str]) -> str:
        """Return `text` with `other(name)` in place of each name."""
        parts: list[str] = []
        end = 0
        for match in self.found_in(text):
            parts += (text[end : match.start()], other(match[0]))
            end = match.end()
        return "".join((*parts, text[end:]))


def _touches_words(name: str) -> bool:
    """Whether it begins or ends in a script without blanks."""
    return any(_EVERY_LETTER.match(char) for char in (name[:1], name[-1:]))


_IGNORED_IN_WORD = regex.compile(
    rf"(?<={_SPACED})\p{{Default_Ignorable_Code_Point}}+(?={_SPACED})", regex.V1
)


class NameEdges:
    """Where the words of a text begin and end, with the signs that belong to them."""

    def __init__(self, text: str) -> None:
        joined = _IGNORED_IN_WORD.sub(lambda found: "_" * len(found[0]), text)
        self._text = THIN_THOUSANDS.sub(",", joined).translate(_TYPED)
        found = [match.span() for match in _NAME_WORD.finditer(self._text)]
        self._starts = {start for start, _ in found}
        self._inside = {place for start, end in found for place in range(start + 1, end)}

    def hold(self, start: int, end: int) -> bool:
        """Whether the range from `start` to `end` is no piece of a longer word or number."""
        if start in self._inside or end in self._inside:
            return False
        # the minus of 1914-18 is no sign of 18
        first = _NAME_WORD.search(self._text[start:end])
        return first is None or start + first.start() in self._starts


_SEGMENT_BREAK = re.compile(r": |; | \| ")
"""Separators of fields in a line; a name never spans two fields."""


def spans_fields(name: str) -> bool:
    """Whether a line could not tell the name from two values."""
    return _SEGMENT_BREAK.search(name) is not None


class NameIndex:
    """Folded names, indexed by first word and length."""

    def __init__(self, names: Iterable[str]) -> None:
        self._lengths: dict[str, set[int]] = defaultdict(set)
        self._names: set[tuple[str, ...]] = set()
        for name in names:
            if words_of_name := tuple(name_words(name)):
                self._names.add(words_of_name)
                self._lengths[words_of_name[0]].add(len(words_of_name))

    def found_in(self, text: str) -> Iterator[str]:
        """Yield every occurrence of a name in `text`, folded."""
        for segment in _SEGMENT_BREAK.split(text):
            text_words = name_words(segment)
            for start, first in enumerate(text_words):
                for length in self._lengths.get(first, ()):
                    candidate = tuple(text_words[start : start + length])
                    if candidate in self._names:
                        yield " ".join(candidate)
