"""A folder of the user's own documents, with triples or questions beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from espalier.artifacts import KnowledgeError
from espalier.config import KnowledgeConfig
from espalier.knowledge.sources.json_lines import JsonLine, read_json_lines, read_text
from espalier.knowledge.sources.source import Question, Source, SourceDocument
from espalier.knowledge.sources.triples import add_triples

MAX_LINE_WORDS = 30
_SUFFIXES = frozenset({".md", ".txt", ".jsonl"})
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_MARKUP = re.compile(r"^(?:#{1,6}\s+|[-*+>]\s+|\d+[.)]\s+)+")
_ATTRIBUTION = "Documents of the user's own; no third-party data was added.\n"


def load_folder(config: KnowledgeConfig) -> Source:
    """The documents of `config.path`, the triples and the questions.

    Raises:
        KnowledgeError: a folder without documents, or a file that cannot be parsed.
    """
    folder = config.path or Path()
    if not folder.is_dir():
        raise KnowledgeError(f"{folder}: no such folder; set knowledge.path to a folder of texts")
    source = Source(_ATTRIBUTION)
    aside = {path.resolve() for path in (config.triples, config.questions) if path}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in _SUFFIXES and path.resolve() not in aside:
            source.documents.extend(_documents(path, path.relative_to(folder).as_posix()))
    if not source.documents:
        raise KnowledgeError(f"{folder}: no .md, .txt or .jsonl file with text in it")
    _refuse_equal_ids(source.documents)
    if config.triples:
        add_triples(source, read_json_lines(config.triples))
        if not source.triples:
            raise KnowledgeError(f"{config.triples}: holds no triples; add some, or unset it")
    if config.questions:
        source.questions = _questions(config.questions)
    return source


def lines_of(text: str) -> Iterator[str]:
    """Sentences and lines of at most `MAX_LINE_WORDS` words, without markup at their start."""
    for line in text.splitlines():
        for sentence in _SENTENCE_END.split(_MARKUP.sub("", line.strip())):
            sentence_words = sentence.split()
            for start in range(0, len(sentence_words), MAX_LINE_WORDS):
                yield " ".join(sentence_words[start : start + MAX_LINE_WORDS])


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


def _refuse_equal_ids(documents: list[SourceDocument]) -> None:
    seen: dict[str, str] = {}
    for document in documents:
        if document.document_id in seen:
            raise KnowledgeError(
                f"two documents have the id {document.document_id.removeprefix('document:')!r} "
                f"({seen[document.document_id]!r} and {document.title!r}); make ids unique"
            )
        seen[document.document_id] = document.title


def _questions(path: Path) -> list[Question]:
    questions: dict[str, Question] = {}
    for line in read_json_lines(path):
        text = line.text("question")
        answer = line.row.get("answer")
        given = answer if isinstance(answer, list) else [answer]
        answers = tuple(one.strip() for one in given if isinstance(one, str) and one.strip())
        if not answers or len(answers) < len(given):
            raise KnowledgeError(
                f"{line.place}: 'answer' is {answer!r}; write a string, or a list of strings"
            )
        questions.setdefault(text, Question(text, answers))
    if not questions:
        raise KnowledgeError(f"{path}: holds no questions; add some, or unset it")
    return list(questions.values())
