"""An SQL database: documents and triples are what two queries return, through SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import sqlalchemy
from sqlalchemy import exc

from espalier.knowledge.sources.json_lines import JsonLine
from espalier.knowledge.sources.lines import lines_of
from espalier.knowledge.sources.source import SourceDocument
from espalier.records import KnowledgeError

_FETCHED_ROWS = 1000


def sql_documents(database: str, query: str, password_file: Path | None) -> list[SourceDocument]:
    """One document a row: column `title`, a `text` or `contents`, and an `id` where there is one.

    Raises:
        KnowledgeError: the database cannot be read, or a row lacks what a document needs.
    """
    documents = []
    for line in _rows(database, query, password_file):
        line.text("text", "contents")
        body = str(line.row.get("text", line.row.get("contents")))
        document_id = line.row.get("id") or line.number
        lines = tuple(lines_of(body))
        documents.append(SourceDocument(f"document:{document_id}", line.text("title"), lines))
    return documents


def sql_triples(database: str, query: str, password_file: Path | None) -> Iterator[JsonLine]:
    """One triple a row, with the columns that a line of knowledge.triples has as keys.

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
                row = {name: str(value) for name, value in named if value is not None}
                yield JsonLine(f"{place}, row {number}", number, row)
    except exc.SQLAlchemyError as error:
        # the first line is the database's own; those below repeat the query and its parameters
        raise KnowledgeError(f"{place}: {str(error).splitlines()[0]}. Query: {query}") from error
    finally:
        engine.dispose()


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
