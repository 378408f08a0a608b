"""The user's own knowledge: documents of a folder, a dump or a database, triples and questions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from espalier.config import KnowledgeConfig
from espalier.knowledge.folding import folded_name
from espalier.knowledge.sources.dump import dump_documents
from espalier.knowledge.sources.folder import folder_documents
from espalier.knowledge.sources.json_lines import JsonLine, read_json_lines
from espalier.knowledge.sources.source import Question, Source, SourceDocument
from espalier.knowledge.sources.sql import sql_documents, sql_triples
from espalier.knowledge.sources.triples import add_triples
from espalier.records import KnowledgeError

_ATTRIBUTION = "Documents of the user's own; no third-party data was added.\n"


def load_own(config: KnowledgeConfig) -> Source:
    """The documents that `config.source` names, the triples and the questions.

    Raises:
        KnowledgeError: a source without documents, or a file or row that cannot be parsed.
    """
    source = Source(_ATTRIBUTION, documents=list(_documents(config)))
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
    return source


def _documents(config: KnowledgeConfig) -> Iterable[SourceDocument]:
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
            found = folder_documents(path, [config.triples, config.questions])
            where = f"{path}: no .md, .txt or .jsonl file with text in it"
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


def _add_triples(source: Source, lines: Iterable[JsonLine]) -> None:
    stated = add_triples(source, lines)
    source.left_out["triples_repeated"] = len(stated) - len(source.triples)


def _add_questions(source: Source, path: Path) -> None:
    """The first row of every question; the others are counted, by whether their answers differ."""
    questions: dict[str, Question] = {}
    repeated = contradicted = 0
    for line in read_json_lines(path):
        text = line.text("question")
        answers = _answers(line)
        first = questions.setdefault(text, Question(text, answers))
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
