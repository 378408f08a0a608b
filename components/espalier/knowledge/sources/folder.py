"""A folder of the user's own documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from espalier.knowledge.sources.json_lines import JsonLine, read_json_lines, read_text
from espalier.knowledge.sources.lines import lines_of
from espalier.knowledge.sources.source import SourceDocument
from espalier.records import KnowledgeError

_SUFFIXES = frozenset({".md", ".txt", ".jsonl"})


def folder_documents(folder: Path, aside: Iterable[Path | None]) -> list[SourceDocument]:
    """The documents of every .md, .txt and .jsonl file below `folder`, in the order of their paths.

    Args:
        folder: of texts.
        aside: files in it that are no documents.

    Raises:
        KnowledgeError: no such folder, or a file that cannot be parsed.
    """
    if not folder.is_dir():
        raise KnowledgeError(f"{folder}: no such folder; set knowledge.path to a folder of texts")
    left_out = {path.resolve() for path in aside if path}
    return [
        document
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in _SUFFIXES and path.resolve() not in left_out
        for document in _documents(path, path.relative_to(folder).as_posix())
    ]


def _documents(path: Path, name: str) -> Iterator[SourceDocument]:
    if path.suffix == ".jsonl":
        for line in read_json_lines(path):
            document_id = str(line.row.get("id") or f"{name}:{line.number}")
            lines = tuple(lines_of(_body(line)))
            yield SourceDocument(f"document:{document_id}", line.text("title"), lines)
        return
    text = read_text(path)
    title = path.stem
    if path.suffix == ".md" and (heading := re.search(r"^#{1,6}\s+(.+?)\s*#*$", text, re.M)):
        title = heading[1]
        text = text[: heading.start()] + text[heading.end() :]
    if lines := tuple(lines_of(text)):
        yield SourceDocument(f"document:{name}", title, lines)


def _body(line: JsonLine) -> str:
    """The text of a document row, with its line breaks."""
    line.text("text", "contents")
    return str(line.row.get("text", line.row.get("contents")))
