"""Questions from documents alone: a sentence in which one name, year or number is asked for.

"Ada was born in London in 1815." becomes "Ada was born in what in 1815?" and "Ada was born in
London in which year?" (cloze questions after Lewis et al. 2019, arXiv:1906.04980, "Unsupervised
Question Answering by Cloze Translation"; the noisy cloze without their translation). A sentence is
used only if it names its subject: by the document's title, or by a pronoun at its beginning, which
the title then replaces.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from espalier.records.folding import folded_name, is_named_in, words
from espalier_search.knowledge.sources import SourceDocument, SourceQuestion

_PRONOUN = re.compile(r"(?:He|She|It|They)(?=\s)")
_OWNER = re.compile(r"(?:His|Her|Its|Their)(?=\s)")
_YEAR = re.compile(r"[12]\d{3}")
_NUMBER = re.compile(
    r"\d{1,3}(?:([,' \u00a0\u2009\u202f\u2019])\d{3}(?:\1\d{3})*)(?!\d)|\d+(?:[.,]\d+)?"
)
_NO_YEAR_AHEAD = re.compile(
    r"(?:^|\s)(?:the|an?|this|that|its|his|her|their|der|die|das|le|la|les|el|il|has|have|had|over"
    r"|about|some|nearly|than|costs?|weighs?|with) $",
    re.IGNORECASE,
)
"""Words in front of a number of four digits that is no year: the 1990 World Cup."""
_MONTH_BEHIND = re.compile(
    " (?:January|February|March|April|May|June|July|August|September|October|November|December)"
)
_COUNTED = re.compile(
    r" (?!(?:a|an|and|as|at|but|by|for|he|her|his|in|into|is|it|its|of|on|or|she|the|their|they|to"
    r"|under|until|was|were|when|where|which|while|who|with)\b)[a-z]"
)
"""The noun that a number counts, which follows it: 1500 employees, but not 1990 and."""
_FRACTION_BEHIND = re.compile(r"\s?\d+/\d")
_LINKING = r"(?:of|de|del|della|di|da|do|dos|du|des|van|von|der|den|la|le|bin|ibn|al)"
_LINKED_BEHIND = re.compile(rf" {_LINKING} (?:(?:the|{_LINKING}) )?[A-Z]")
_LINKED_AHEAD = re.compile(rf"[A-Z][\w'\u2019-]* (?:(?:the|{_LINKING}) )*{_LINKING} (?:the )?$")
_ABBREVIATED_AHEAD = re.compile(r"(?:^|\s)[A-Z][^\W\d_]{0,4}\. $")
_LINK_CHARACTERS = 60
"""How far in front of a name its linking words are looked for: a longer text takes no more time."""

_NAME = r"(?=\w[\w'\u2019&+#-])[A-Z][^\W_]*(?:['\u2019&-](?!s\b)[^\W_]+)*(?:\+\+|\#)?"
_NAMES = re.compile(rf"{_NAME}(?: {_NAME})*")
_WHOLE_AHEAD = re.compile(r"(?:^|[\s(\[\"\u201c\u2018\u00ab\u2014])$")
_WHOLE_BEHIND = re.compile(r"(?:['\u2019]s)?[)\].,;:!?\"\u201d\u2019\u00bb]{0,4}(?:[\s\u2014]|$)")
"""What stands beside a whole name or number: a part of O'Brien, of 12:30 or of $5 is no answer."""
_MIN_WORDS, _MAX_WORDS = 4, 24
_MAX_ANSWER_WORDS = 4
_MAX_PER_SENTENCE = 2
MAX_QUESTIONS = 20_000
"""Each question is looked up in the documents afterwards, which for all questions of a dump would
take hours."""


class _Gap(NamedTuple):
    start: int
    end: int
    asked_as: str


class Cloze(NamedTuple):
    """Questions, and the number of sentences that yielded none."""

    questions: list[SourceQuestion]
    unused_sentences: int


def cloze_questions(documents: Iterable[SourceDocument]) -> Cloze:
    """Return up to two questions for each sentence of `documents`, with one answer each.

    If there are more than `MAX_QUESTIONS`, a random sample of them is returned.
    """
    asked: dict[str, list[tuple[int, SourceQuestion]]] = defaultdict(list)
    sentences = 0
    for document in documents:
        said = Counter(word for line in document.lines for word in words(line))
        for line in document.lines:
            for question in _questions_of(line, document.title, said):
                asked[folded_name(question.question)].append((sentences, question))
            sentences += 1
    # equal sentences in two documents may give one question with two answers: such are dropped
    single = [found[0] for found in asked.values() if len(found) == 1]
    if len(single) > MAX_QUESTIONS:
        chosen = random.Random("cloze").sample(range(len(single)), MAX_QUESTIONS)
        single = [single[place] for place in sorted(chosen)]
    used = {number for number, _ in single}
    return Cloze([question for _, question in single], sentences - len(used))


def _questions_of(line: str, title: str, said: Counter[str]) -> Iterator[SourceQuestion]:
    sentence = sentence_about(line, title)
    if sentence is None or not _MIN_WORDS <= len(sentence.split()) <= _MAX_WORDS:
        return
    made = 0
    for gap in _gaps(sentence, title):
        answer = sentence[gap.start : gap.end]
        # an answer that occurs elsewhere in the document may answer a different question
        if min(said[word] for word in words(answer)) > 1 or made == _MAX_PER_SENTENCE:
            continue
        text = f"{sentence[: gap.start]}{gap.asked_as}{sentence[gap.end :]}".rstrip(" .!?")
        made += 1
        yield SourceQuestion(f"{text}?", (answer,))


def sentence_about(line: str, title: str) -> str | None:
    """Return the sentence with the document's title in it; None if it lacks a clear subject."""
    if is_named_in(title, line):
        return line
    if match := _PRONOUN.match(line):
        return title + line[match.end() :]
    if match := _OWNER.match(line):
        return f"{title}'s{line[match.end() :]}"
    return None


def _gaps(sentence: str, title: str) -> Iterator[_Gap]:
    """Yield what can be asked for: years first, then other numbers, then names beside the title."""
    taken = [match.span() for match in re.finditer(re.escape(title), sentence, re.IGNORECASE)]
    for pattern, asked_as in ((_YEAR, "which year"), (_NUMBER, "how many"), (_NAMES, "what")):
        for match in pattern.finditer(sentence):
            start, end = match.span()
            overlaps = any(
                start < other_end and other_start < end for other_start, other_end in taken
            )
            # the first word is capitalised anyway, unless a second capitalised word follows it
            is_first_word = start == 0 and asked_as == "what" and " " not in match[0]
            is_long = len(match[0].split()) > _MAX_ANSWER_WORDS
            if overlaps or is_first_word or is_long or not _is_whole(sentence, start, end):
                continue
            if asked_as != "what" and asked_as != _asks_for(sentence, start, end):
                continue
            taken.append((start, end))
            yield _Gap(start, end, asked_as)


def _is_whole(sentence: str, start: int, end: int) -> bool:
    """Whether a name or number there is no part of a longer one: University of Oxford, 5 1/2."""
    ahead = sentence[max(0, start - _LINK_CHARACTERS) : start]
    if not _WHOLE_AHEAD.search(ahead[-1:]) or not _WHOLE_BEHIND.match(sentence, end):
        return False
    if _ABBREVIATED_AHEAD.search(ahead) or sentence[end : end + 2] == ". ":  # St. Louis, No. 5
        return False
    if sentence[start].isdigit():
        return not _FRACTION_BEHIND.match(sentence, end)
    return not (_LINKED_BEHIND.match(sentence, end) or _LINKED_AHEAD.search(ahead))


def _asks_for(sentence: str, start: int, end: int) -> str:
    """Return the words that ask for the number there.

    They are "which year" or "how many"; "" for a day (27 November) and for the 1990 World Cup.
    """
    if not _YEAR.fullmatch(sentence[start:end]):
        return "" if _MONTH_BEHIND.match(sentence, end) else "how many"
    if _COUNTED.match(sentence, end):
        return "how many"
    is_other = _NO_YEAR_AHEAD.search(sentence[max(0, start - _LINK_CHARACTERS) : start])
    return "" if is_other else "which year"
