"""The user's own documents (a folder, a MediaWiki dump, an SQL database), triples and questions."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, cast
from xml.etree import ElementTree

import sqlalchemy
from sqlalchemy import exc

from espalier.config import KnowledgeConfig
from espalier.records import KnowledgeError
from espalier.records.folding import folded_name
from espalier_search.knowledge.cloze import cloze_questions
from espalier_search.knowledge.folder import files_left_out, folder_documents, header_notes
from espalier_search.knowledge.sources import (
    JsonLine,
    KnowledgeSource,
    SourceDocument,
    SourceQuestion,
    lines_of,
    read_json_lines,
)
from espalier_search.knowledge.user_triples import add_triples
from espalier_search.knowledge.wikitext import NO_TEXT, plain_text

_FETCHED_ROWS = 1000


def sql_documents(database: str, query: str, password_file: Path | None) -> list[SourceDocument]:
    """Return a document per row, from columns `title`, `text` or `contents`, and maybe `id`.

    Raises:
        KnowledgeError: the database cannot be read, or a row lacks what a document needs.
    """
    documents = []
    for line in _rows(database, query, password_file):
        document_id = line.row.get("id") or line.number
        lines = tuple(lines_of(line.contents()))
        documents.append(SourceDocument(f"document:{document_id}", line.text("title"), lines))
    return documents


def sql_triples(database: str, query: str, password_file: Path | None) -> Iterator[JsonLine]:
    """Return a triple per row, with the column names that knowledge.triples has as keys.

    Raises:
        KnowledgeError: the database cannot be read.
    """
    return _rows(database, query, password_file)


def _rows(database: str, query: str, password_file: Path | None) -> Iterator[JsonLine]:
    engine = _engine(database, password_file)
    place = engine.url.render_as_string(hide_password=True)
    try:
        with engine.connect() as connection:
            streamed = connection.execution_options(yield_per=_FETCHED_ROWS)
            result = streamed.execute(sqlalchemy.text(query))
            columns = list(result.keys())
            for number, values in enumerate(result, start=1):
                named = zip(columns, values, strict=True)
                where = f"{place}, row {number}"
                row = {name: _text(v, f"{where}, {name}") for name, v in named if v is not None}
                yield JsonLine(where, number, row)
    except exc.SQLAlchemyError as error:
        # the first line is the database's message; the others repeat the query and its parameters
        raise KnowledgeError(f"{place}: {str(error).splitlines()[0]}. Query: {query}") from error
    finally:
        engine.dispose()


def _text(value: object, where: str) -> str:
    if not isinstance(value, bytes | bytearray | memoryview):
        return str(value)
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise KnowledgeError(f"{where}: bytes that are no UTF-8 text ({error})") from error


def _engine(database: str, password_file: Path | None) -> sqlalchemy.Engine:
    try:
        url = sqlalchemy.make_url(database)
        if password_file is not None:
            url = url.set(password=password_file.read_text(encoding="utf-8").strip())
        return sqlalchemy.create_engine(url)
    except (exc.ArgumentError, OSError, UnicodeDecodeError) as error:
        raise KnowledgeError(f"knowledge.database: cannot be opened ({error})") from error
    except ModuleNotFoundError as error:
        raise KnowledgeError(
            f"knowledge.database={database} needs the package {error.name}: install it"
        ) from error


_ARTICLES = "0"
"""Namespace number of articles; talk pages, templates and files have others."""


_NO_TEXT_KEYS = ("6", "14")
"""Numbers of the namespaces `NO_TEXT`, by which a dump tells their names in its language."""


def dump_documents(path: Path, max_documents: int) -> Iterator[SourceDocument]:
    """Yield a document per article, in the order of the dump; redirects are left out.

    Args:
        path: an .xml file, plain or packed as .bz2 or .gz.
        max_documents: stop after this many; 0 reads all.

    Raises:
        KnowledgeError: the file is missing, of another kind, or truncated.
    """
    count = 0
    no_text: list[str] = list(NO_TEXT)
    for page_id, title, wikitext in _pages(path, no_text):
        if lines := tuple(line for line in lines_of(plain_text(wikitext, no_text)) if line):
            yield SourceDocument(f"document:{page_id}", title, lines)
            count += 1
        if max_documents and count == max_documents:
            return


def _pages(path: Path, no_text: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of every article except redirects, holding one page in memory.

    The dump's own names of files and categories, which stand before its pages, go to `no_text`.
    """
    try:
        with _opened(path) as stream:
            events = ElementTree.iterparse(stream, events=("start", "end"))
            _, root = next(events)
            for event, element in events:
                if event == "end" and element.get("key") in _NO_TEXT_KEYS and element.text:
                    no_text.append(element.text)
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
    """Return the tag without its XML namespace, which depends on the export's version."""
    return element.tag.rpartition("}")[2]


_ATTRIBUTION = "Documents of the user's own; no third-party data was added.\n"


def load_own(config: KnowledgeConfig) -> KnowledgeSource:
    """Load the documents that `config.source` selects, the triples and the questions.

    Raises:
        KnowledgeError: the source has no documents, or a file or row cannot be parsed.
    """
    headers: dict[str, Sequence[str]] = {}
    source = KnowledgeSource(_ATTRIBUTION, documents=list(_documents(config, headers)))
    source.notes = header_notes(headers)
    if config.source == "folder" and config.path:
        source.left_out |= files_left_out(config.path, [config.triples, config.questions])
    _refuse_equal_ids(source.documents)
    if config.triples:
        _add_triples(source, read_json_lines(config.triples))
        if not source.triples:
            raise KnowledgeError(f"{config.triples}: holds no triples; add some, or unset it")
    elif config.triples_query:
        password_file = config.database_password_file
        _add_triples(source, sql_triples(config.database, config.triples_query, password_file))
        if not source.triples:
            raise KnowledgeError("knowledge.triples_query: returns no row; mend it, or unset it")
    if config.questions:
        _add_questions(source, config.questions)
    if config.asks_documents_alone:
        source.questions, unused = cloze_questions(source.documents)
        source.left_out["sentences_not_asked_about"] = unused
        if not source.questions:
            raise KnowledgeError(
                f"no question can be made of the {len(source.documents)} documents alone: none has "
                "a sentence with its title, or a pronoun at its beginning, and a name, year or "
                "number beside it. Set knowledge.questions, knowledge.triples or "
                "knowledge.extraction"
            )
    return source


def _documents(
    config: KnowledgeConfig, headers: dict[str, Sequence[str]]
) -> Iterable[SourceDocument]:
    path = config.path or Path()
    match config.source:
        case "dump":
            found = list(dump_documents(path, config.max_documents))
            where = f"{path}: no article with text in it"
        case "sql":
            password_file = config.database_password_file
            found = sql_documents(config.database, config.documents_query, password_file)
            where = "knowledge.documents_query: returns no row"
        case _:
            found = folder_documents(path, [config.triples, config.questions], headers)
            where = f"{path}: no file with text in it, such as .md, .txt, .jsonl, .csv or .pdf"
    if not found:
        raise KnowledgeError(where)
    return found


def _refuse_equal_ids(documents: list[SourceDocument]) -> None:
    seen: dict[str, str] = {}
    for document in documents:
        if document.document_id in seen:
            raise KnowledgeError(
                f"two documents have the id {document.document_id.removeprefix('document:')!r} "
                f"({seen[document.document_id]!r} and {document.title!r}); make ids unique"
            )
        seen[document.document_id] = document.title


def _add_triples(source: KnowledgeSource, lines: Iterable[JsonLine]) -> None:
    stated = add_triples(source, lines)
    source.left_out["triples_repeated"] = len(stated) - len(source.triples)


def _add_questions(source: KnowledgeSource, path: Path) -> None:
    """Add the first row of every question; count repeats, by whether their answers differ."""
    questions: dict[str, SourceQuestion] = {}
    repeated = contradicted = 0
    for line in read_json_lines(path):
        text = line.text("question")
        answers = _answers(line)
        first = questions.setdefault(text, SourceQuestion(text, answers))
        if first.answers is not answers:
            is_equal = set(map(folded_name, first.answers)) == set(map(folded_name, answers))
            repeated += is_equal
            contradicted += not is_equal
    if not questions:
        raise KnowledgeError(f"{path}: holds no questions; add some, or unset it")
    source.questions = list(questions.values())
    source.left_out |= {
        "questions_repeated": repeated,
        "questions_contradicted": contradicted,
    }


def _answers(line: JsonLine) -> tuple[str, ...]:
    answer = line.row.get("answer")
    given = answer if isinstance(answer, list) else [answer]
    answers = tuple(one.strip() for one in given if isinstance(one, str) and one.strip())
    if not answers or len(answers) < len(given):
        raise KnowledgeError(
            f"{line.place}: 'answer' is {answer!r}; write a string, or a list of strings"
        )
    return answers
