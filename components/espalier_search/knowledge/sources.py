"""What every source provides before splits are drawn, and reading of the user's files."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from espalier.dialects.syntax import parsed_json
from espalier.records import KnowledgeError
from espalier.records.knowledge import Relation, Triple


@dataclass(frozen=True, slots=True)
class SourceEntity:
    """An entity without its split."""

    entity_id: str
    name: str
    kind: str
    hub: bool = False
    """Whether all splits share it."""
    region: str = ""
    """Id of the entity whose split this one follows; empty if it draws its own."""
    has_document: bool = True
    of_user: bool = False
    """Whether a user names it, who means what is written: a number, a code or a single letter."""
    facts: tuple[str, ...] = ()
    """Lines of its document that state no relation, such as "population: 20,430"."""


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A text of the user, split into lines."""

    document_id: str
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceQuestion:
    """A user's question with all accepted answers."""

    question: str
    answers: tuple[str, ...]


@dataclass(slots=True)
class KnowledgeSource:
    """Everything that a source provides."""

    attribution: str
    entities: list[SourceEntity] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    triples: list[Triple] = field(default_factory=list)
    documents: list[SourceDocument] = field(default_factory=list)
    questions: list[SourceQuestion] = field(default_factory=list)
    region_kinds: frozenset[str] = frozenset()
    """Kinds of entities that are assigned to splits together with what lies in them."""
    pinned: frozenset[str] = frozenset()
    """Ids of entities that are always in the training split."""
    public: frozenset[str] = frozenset()
    """Ids of hubs (continents) that all splits show, whatever their names contain."""
    entity_documents: dict[str, str] = field(default_factory=dict)
    """Entity id -> id of the user's document about it."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason for unused rows, such as triples_repeated -> number of rows."""
    notes: list[str] = field(default_factory=list)
    """Lines for the log about how the source was read."""


class JsonLine(NamedTuple):
    """One object of a .jsonl file."""

    place: str
    """File and line, for messages."""
    number: int
    row: dict[str, Any]

    def text(self, *keys: str) -> str:
        """Return the first of `keys` that the row has, as a non-empty string.

        Raises:
            KnowledgeError: the row has none of them, or the value is not a text, or holds NUL
                characters.
        """
        for key in keys:
            if key in self.row:
                value = self.row[key]
                if isinstance(value, str) and value.strip():
                    if "\0" in value:
                        raise KnowledgeError(
                            f"{self.place}: {key!r} holds NUL characters (\\u0000). Remove them."
                        )
                    return " ".join(value.split())
                raise KnowledgeError(
                    f"{self.place}: {key!r} is {value!r}; write a string that is not empty"
                )
        wanted = " or ".join(repr(key) for key in keys)
        raise KnowledgeError(f"{self.place}: no {wanted}; the row has {sorted(self.row)}")

    def contents(self) -> str:
        """Return the text of a document's row, with its line breaks.

        Raises:
            KnowledgeError: it has none.
        """
        self.text("text", "contents")
        return str(self.row.get("text", self.row.get("contents")))


def read_text(path: Path) -> str:
    """Return the file as UTF-8 text, with the line breaks of Unix.

    Raises:
        KnowledgeError: the file cannot be read, is not UTF-8, or holds NUL characters.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KnowledgeError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KnowledgeError(
            f"{path}: not UTF-8 at byte {error.start} ({error.reason}). Convert it, for example: "
            f"iconv -f {_wide_encoding(content) or 'latin1'} -t UTF-8 {path.name}"
        ) from error
    if "\0" in text:
        encoding = _wide_encoding(content)
        raise KnowledgeError(
            f"{path}: NUL characters, the first at byte {content.index(0)}. "
            + (
                f"It looks like {encoding}: iconv -f {encoding} -t UTF-8 {path.name}"
                if encoding
                else "Remove them, or move the file out of the folder"
            )
        )
    return io.StringIO(text, newline=None).read()


_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
"""Byte order marks, by which iconv tells the order of the bytes, too."""
_LEAST_NULS = 3
_LEAST_NUL_SHARE = 0.05
"""Fewer NUL bytes are strays; in UTF-16 the blanks and line breaks of any script have one each."""


def _wide_encoding(content: bytes) -> str:
    """UTF-16 or UTF-32, if a byte order mark or the places of NUL bytes show it; else ""."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return encoding
    counts = [content[place::4].count(0) for place in range(4)]
    if sum(counts) < max(_LEAST_NULS, _LEAST_NUL_SHARE * len(content)):
        return ""
    if counts[1] == counts[2] == len(content) // 4:
        return "UTF-32LE" if counts[3] else "UTF-32BE"
    big, little = counts[0] + counts[2], counts[1] + counts[3]
    if not min(big, little):
        return "UTF-16LE" if little else "UTF-16BE"
    return ""


def read_json_lines(path: Path) -> Iterator[JsonLine]:
    """Yield the objects of a .jsonl file; blank lines are skipped.

    Raises:
        KnowledgeError: a line is not a JSON object, or holds what `parsed_json` refuses.
    """
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = parsed_json(line)
        except ValueError as error:
            reason = str(error).split(";")[0]  # Python's advice about long numbers follows it
            if isinstance(error, json.JSONDecodeError):
                reason = f"{error.msg} at column {error.colno}"
            raise KnowledgeError(
                f"{place}: not JSON that can be read ({reason}). Write one object per line, with "
                "long numbers as strings, or remove the line."
            ) from error
        if not isinstance(row, dict):
            raise KnowledgeError(f"{place}: {type(row).__name__}, not an object in braces")
        yield JsonLine(place, number, row)


_RAISED = re.compile(r"<sup(?:\s[^<>]*+)?>([^<>]*+)</sup\s*>", re.IGNORECASE)
_LOWERED = re.compile(r"(\d)<sub(?:\s[^<>]*+)?>(\d+)</sub\s*>", re.IGNORECASE)
_LOWERING = re.compile(r"</?sub(?:\s[^<>]*+)?>", re.IGNORECASE)
_POWER = re.compile(r"[-+\u2212]?(?:\d+(?:[.,]\d+)?|[ijkmnptxy])")
_MARK = re.compile(r"\d{1,3}|[*\u2020\u2021]+|\[[^\]]*\]")
_BASE = re.compile(r"(?:(?<!\d)\d{1,2}|(?<![^\W\d_])[^\W\d_]{1,2}|[)\]])\Z")
"""What is raised to a power: 10, 2, m, km, a bracket. A year and a word have a footnote."""


def with_plain_raising(text: str) -> str:
    """Return a text with `<sup>` and `<sub>` in signs, so that no number grows by a digit.

    10<sup>22</sup> becomes 10^22, 1st and Ca2+ stay so, a footnote's mark is set apart: "1969 [3]".
    """

    def raised(found: re.Match[str]) -> str:
        shown = found[1].strip()
        is_based = _BASE.search(text, max(0, found.start() - _BASE_CHARACTERS), found.start())
        if is_based and _POWER.fullmatch(shown):
            return f"^{shown}"
        if _MARK.fullmatch(shown):
            return f" [{shown.strip('[]')}]"
        return shown

    return _LOWERING.sub("", _LOWERED.sub(r"\1_\2", _RAISED.sub(raised, text)))


_BASE_CHARACTERS = 4
MAX_LINE_WORDS = 30
_HEADING = re.compile(r"(?:#{1,6}\s+|>\s*)+")
_BULLET = re.compile(r"([-*+\u2022])\s+(?=(.))")
_STOPS = r"\u3002\uff01\uff1f\uff61\u0964\u0965\u104b\u17d4\u17d5"
_CLOSING = r"\u3009\u300b\u300d\u300f\u3011\uff09\u201d\u2019)"
_FULL_STOP = re.compile(
    rf"(?:(?<=[{_STOPS}])|(?<=[{_STOPS}][{_CLOSING}]))(?![{_STOPS}{_CLOSING}\u3001])"
)
"""Where a sentence ends whatever follows: after a full stop of Chinese, Japanese, Indic, Burmese
or Khmer, and the quotation or bracket that ends there too."""
_ENUMERATED = re.compile(r"(\d{1,3})([.)])\s+")


def lines_of(text: str) -> Iterator[str]:
    """Split text into sentences of at most `MAX_LINE_WORDS` words, without leading markup."""
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    for number, line in enumerate(lines):
        beside = lines[max(0, number - 1) : number] + lines[number + 1 : number + 2]
        parts = _FULL_STOP.split(_without_markup(line, beside))
        for sentence in _joined(chain.from_iterable(map(_sentences, parts))):
            sentence_words = sentence.split()
            for start in range(0, len(sentence_words), MAX_LINE_WORDS):
                yield " ".join(sentence_words[start : start + MAX_LINE_WORDS])


_WINDOW = 4000
"""Most characters that are divided at once: the time is quadratic in open quotation marks."""
_AHEAD = 1000
"""Characters behind a sentence that are seen with it: a quotation in it may end there."""


def _sentences(text: str) -> Iterator[str]:
    """The sentences of a text; one that fills a window is cut at a blank."""
    from sentencex.sentencex import segment  # of the extra `train`; the client reads no documents

    start = 0
    while len(text) - start > _WINDOW:
        blank = text.rfind(" ", start + _WINDOW // 2, start + _WINDOW)
        window = text[start : start + _WINDOW if blank < 0 else blank + 1]
        taken = 0
        for sentence in segment("en", window):
            if taken and taken + len(sentence) > _WINDOW - _AHEAD:
                break
            yield sentence
            taken += len(sentence)
        start += taken
    yield from segment("en", text[start:])


def _without_markup(line: str, beside: Sequence[str]) -> str:
    """The line without the marks of a heading, quotation or list.

    A number or a minus in front of a number is text, unless a line beside it is of the same list:
    "1066. William conquers England" and "- 20 degrees" begin no list.
    """
    bare = line[found.end() :] if (found := _HEADING.match(line)) else line
    if found := _BULLET.match(bare):
        is_list = any(one.startswith(f"{found[1]} ") for one in beside)
        return (
            bare[found.end() :] if is_list or not (found[1] == "-" and found[2].isdigit()) else bare
        )
    if found := _ENUMERATED.match(bare):
        near = {int(one[1]) for one in map(_ENUMERATED.match, beside) if one and one[2] == found[2]}
        if near & {int(found[1]) - 1, int(found[1]) + 1}:
            return bare[found.end() :]
    return bare


_NUMBER_ALONE = re.compile(r"\d+\.")
_SHORT_END = re.compile(r"(?:^|[\W_])(?:\d{1,4}|[^\W\d_]{1,3})\.\s*$")
_ORDINAL_END = re.compile(r"(?:^|[\W_])\d{1,2}\.\s*$")
_NAME_FOLLOWS = re.compile(
    r"(?:^|\s)(?:[Aa]pprox|Dra|Srta?|ej|EE|av|Sig(?:ra)?|[Dd]ott|[Dd]hr|[Mm]evr|bijv|Kl|[Vv]ol|[Uu]l|[Kk]s"
    r"|janv|f\u00e9vr|juil|[Pp]\u00e1g|(?<!\d )[\u0413\u0433]|[\u0423\u0443]\u043b|[\u0414\u0434]"
    r"|[\u0418\u0438]\u043c|[\u041f\u043f]\u0440\u043e\u0444|[\u0410\u0430]\u043a\u0430\u0434"
    r"|[\u0421\u0441]\u0432|[\u041a\u043a]\u043d)\.\s*$"
)
"""Abbreviations of Spanish, French, Italian, Dutch, German, Polish and Russian that end no
sentence, as a name or a number follows; sentencex knows those of English."""
_END_CHARACTERS = 12
"""Of a sentence, in which these are looked for."""
_AFTER_ORDINAL = re.compile(
    r"(?:Januar|J\u00e4nner|Februar|M\u00e4rz|April|Mai|Juni|Juli|August|September|Oktober|November"
    r"|Dezember|Jahrhunderts?|Jahrtausends?)\b"
)
"""What follows the dot of a German ordinal in most texts: `3. Mai`, `19. Jahrhundert`."""


def _joined(sentences: Iterable[str]) -> Iterator[str]:
    """The sentences; a number with a dot goes with what it counts, a point with NET after it.

    An abbreviation of few letters, or a number, goes with a small letter after it: `5 km. away`.
    """
    begun: list[str] = []
    for sentence in _whole(sentences):
        if _NUMBER_ALONE.fullmatch(sentence.strip()):
            begun.append(f"{sentence.strip()} ")
        elif sentence.endswith(" ."):  # a blank would follow the end of a sentence
            begun.append(sentence)
        else:
            yield "".join([*begun, sentence])
            begun.clear()
    if begun:
        yield "".join(begun).strip()


def _whole(sentences: Iterable[str]) -> Iterator[str]:
    """The sentences, with those in one that a dot inside of a sentence has parted."""
    begun: list[str] = []
    for sentence in sentences:
        end = begun[-1][-_END_CHARACTERS:] if begun else ""
        is_abbreviated = _NAME_FOLLOWS.search(end) or (
            sentence[:1].islower() and _SHORT_END.search(end)
        )
        is_inside = is_abbreviated or (_AFTER_ORDINAL.match(sentence) and _ORDINAL_END.search(end))
        if begun and not is_inside:
            yield " ".join(begun)
            begun.clear()
        begun.append(sentence)
    if begun:
        yield " ".join(begun)
