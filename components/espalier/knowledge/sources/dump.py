"""A Wikipedia-style dump: the pages of a MediaWiki XML export, read as a stream."""

from __future__ import annotations

import bz2
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast
from xml.etree import ElementTree

from espalier.knowledge.sources.lines import lines_of
from espalier.knowledge.sources.source import SourceDocument
from espalier.records import KnowledgeError

_ARTICLES = "0"
"""Namespace of articles; talk pages, templates and files have others."""

_DROPPED = re.compile(
    r"<!--.*?-->|<ref[^>/]*/>|<ref[^>]*>.*?</ref>|<(math|gallery|timeline|syntaxhighlight)[^>]*>"
    r".*?</\1>",
    re.DOTALL | re.IGNORECASE,
)
_INNERMOST_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_TABLE = re.compile(r"^\{\|.*?^\|\}", re.DOTALL | re.MULTILINE)
_FILE_LINK = re.compile(
    r"\[\[(?:File|Image|Category):[^\[\]]*(?:\[\[[^\[\]]*\]\][^\[\]]*)*\]\]", re.IGNORECASE
)
_LINK = re.compile(
    r"\[\[(?:File|Image|Category|Datei|Kategorie):[^\[\]]*(?:\[\[[^\]]*\]\][^\[\]]*)*\]\]", re.I
)
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_EXTERNAL_LINK = re.compile(r"\[\w+://\S+\s*([^\]]*)\]")
_TAG = re.compile(r"</?\w+[^>]*>")
_HEADING = re.compile(r"^=+\s*(.*?)\s*=+\s*$", re.MULTILINE)
_QUOTES = re.compile(r"'{2,}")
_MAX_NESTING = 20


def dump_documents(path: Path, max_documents: int) -> Iterator[SourceDocument]:
    """One document an article, in the order of the dump; redirects are left out.

    Args:
        path: an .xml file, plain or packed as .bz2 or .gz.
        max_documents: stop after so many; 0 reads all.

    Raises:
        KnowledgeError: no such file, another kind of file, or XML that breaks off.
    """
    count = 0
    for page_id, title, wikitext in _pages(path):
        if lines := tuple(line for line in lines_of(plain_text(wikitext)) if line):
            yield SourceDocument(f"document:{page_id}", title, lines)
            count += 1
        if max_documents and count == max_documents:
            return


def plain_text(wikitext: str) -> str:
    """Wikitext as readable lines: no templates, tables, references, files or markup."""
    text = _DROPPED.sub(" ", wikitext)
    for _ in range(_MAX_NESTING):
        text, replaced = _INNERMOST_TEMPLATE.subn(" ", text)
        if not replaced:
            break
    text = _FILE_LINK.sub(" ", _TABLE.sub(" ", text))
    text = _EXTERNAL_LINK.sub(r"\1", _LINK.sub(r"\1", text))
    text = _QUOTES.sub("", _TAG.sub(" ", _HEADING.sub(r"\1", text)))
    return text.replace("&nbsp;", " ")


def _pages(path: Path) -> Iterator[tuple[str, str, str]]:
    """Id, title and text of every article that is no redirect, one page in memory at a time."""
    try:
        with _opened(path) as stream:
            events = ElementTree.iterparse(stream, events=("start", "end"))
            _, root = next(events)
            for event, element in events:
                if event == "end" and _name(element) == "page":
                    if page := _article(element):
                        yield page
                    root.clear()
    except (OSError, EOFError) as error:
        raise KnowledgeError(f"{path}: cannot be read ({error})") from error
    except ElementTree.ParseError as error:
        raise KnowledgeError(
            f"{path}: not a whole MediaWiki export ({error}). Fetch the dump again."
        ) from error


def _opened(path: Path) -> IO[bytes]:
    match path.suffix:
        case ".xml":
            return path.open("rb")
        case ".bz2":
            return bz2.open(path, "rb")
        case ".gz":
            return cast("IO[bytes]", gzip.open(path, "rb"))
        case _:
            raise KnowledgeError(f"{path}: a dump is an .xml file, plain or packed as .bz2 or .gz")


def _article(page: ElementTree.Element) -> tuple[str, str, str] | None:
    found: dict[str, str] = {}
    for element in page.iter():
        # the page's own id comes before those of its revision and contributor
        found.setdefault(_name(element), element.text or "")
    title, text = found.get("title", "").strip(), found.get("text", "")
    if found.get("ns", _ARTICLES) != _ARTICLES or "redirect" in found or not title:
        return None
    return found.get("id") or title, title, text


def _name(element: ElementTree.Element) -> str:
    """The tag without its namespace, which changes with the export's version."""
    return element.tag.rpartition("}")[2]
