"""Search: words and phrases in the messages of all attempts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from espalier.wire.requests import Refusal
from espalier_ui.attempts import Filter, shown
from espalier_ui.parameters import Page
from espalier_ui.run_index import ROLES, RunIndex, message_text
from espalier_ui.sources import SOURCES

_PART = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"\w+")
_MOST_COUNTED = 10_000
_BEFORE, _SHOWN = 60, 240
"""Characters of a snippet before its first mark, and in all."""
_MOST_PARTS = 12


def matched(text: str, role: str | None) -> tuple[str, list[str]]:
    """Return the query for SQLite, and what to mark in a snippet.

    Args:
        text: words; the last one may be a beginning; phrases stand in quotes.
        role: whose messages are searched; None for all.

    Raises:
        Refusal: there is no word in it, or there are too many.
    """
    terms: list[str] = []
    marked: list[str] = []
    parts = [(match[1] is not None, match[1] or match[2] or "") for match in _PART.finditer(text)]
    for place, (is_phrase, part) in enumerate(parts):
        words = _WORD.findall(part)
        if not words:
            continue
        is_beginning = not is_phrase and place == len(parts) - 1 and part[-1:].isalnum()
        # in quotes nothing is an operator of the query
        terms.append(f'"{" ".join(words)}"{"*" if is_beginning else ""}')
        marked.append(" ".join(words))
    if not terms or len(terms) > _MOST_PARTS:
        raise Refusal(
            400, f"q: give 1 to {_MOST_PARTS} words or phrases", param="q", code="bad_parameter"
        )
    query = " AND ".join(terms)
    return (f"{{{role}}} : ({query})" if role else query), marked


def search_page(
    index: RunIndex,
    text: str,
    role: str | None,
    wanted: Filter,
    page: Page,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """Return the page of `GET .../search`, newest first."""
    query, marked = matched(text, role)
    joined = (
        f"FROM words JOIN attempts ON attempts.id = words.rowid "
        f"WHERE words MATCH ? AND {wanted.condition}"
    )
    with index.reading() as connection:
        (total,) = connection.execute(
            f"SELECT count(*) FROM (SELECT 1 {joined} LIMIT ?)",
            (query, *wanted.values, _MOST_COUNTED + 1),
        ).fetchone()
        rows = connection.execute(
            f"SELECT attempts.* {joined} ORDER BY words.rowid DESC LIMIT ? OFFSET ?",
            (query, *wanted.values, page.limit, page.offset),
        ).fetchall()
    hits = [
        {"attempt": shown(row, labels)}
        | _hit(
            index.record(SOURCES[row["source"]], row["number"], row["offset"]) or {}, marked, role
        )
        for row in rows
    ]
    return {
        "total": {"at_least": _MOST_COUNTED} if total > _MOST_COUNTED else total,
        "offset": page.offset,
        "indexed": index.state().worded,
        "hits": hits,
    }


def _hit(record: Mapping[str, Any], marked: Sequence[str], role: str | None) -> dict[str, Any]:
    """Return the message that matches best, and a piece of it."""
    best: tuple[int, int, str, str, list[tuple[int, int]]] | None = None
    for number, said, text in _texts(record, role):
        spans = list(_spans(text, marked))
        found = len({term for term, _, _ in spans})
        if best is None or found > best[0]:
            best = (found, number, said, text, [(start, end) for _, start, end in spans])
    if best is None:
        return {"message": None, "role": None, "snippet": "", "marks": []}
    _, number, said, text, spans = best
    first = min((start for start, _ in spans), default=0)
    start = max(0, first - _BEFORE)
    piece = text[start : start + _SHOWN]
    marks = [
        [_units(piece[: low - start]), _units(piece[: high - start])]
        for low, high in spans
        if low >= start and high <= start + _SHOWN
    ]
    return {"message": number, "role": said, "snippet": piece, "marks": sorted(marks)}


def _texts(record: Mapping[str, Any], role: str | None) -> Iterator[tuple[int, str, str]]:
    messages = record.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else []):
        said = message.get("role") if isinstance(message, Mapping) else None
        if said in ROLES and role in (None, said):
            yield number, str(said), message_text(message)


def _spans(text: str, marked: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    folded = _folded(text)
    for term in marked:
        pattern = r"\W+".join(re.escape(word) for word in _folded(term).split())
        for count, match in enumerate(re.finditer(rf"(?<!\w){pattern}", folded)):
            if count == 20:
                break
            yield term, match.start(), match.end()


def _folded(text: str) -> str:
    """Return the text in small letters without accents, as long as it was."""
    return "".join(_fold(letter) for letter in text)


def _fold(letter: str) -> str:
    if letter.isascii():
        return letter.lower()
    plain = unicodedata.normalize("NFD", letter)[0].lower()
    return plain if len(plain) == 1 else letter


def _units(text: str) -> int:
    """Return the length in UTF-16 code units, which is what a browser counts."""
    return len(text.encode("utf-16-le", errors="surrogatepass")) // 2
