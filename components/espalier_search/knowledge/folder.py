"""A folder of the user's documents: texts, tables, and files that are converted to texts."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from espalier.records import KnowledgeError
from espalier.records.folding import folded_name, is_number
from espalier_search.knowledge.converting import (
    CONVERTED,
    INSTALL,
    Converter,
    UnreadableError,
    is_convertible,
)
from espalier_search.knowledge.sources import (
    SourceDocument,
    lines_of,
    read_json_lines,
    read_text,
    with_plain_raising,
)

_TEXTS = frozenset({".md", ".txt", ".jsonl"})
_TABLES = frozenset({".csv", ".tsv"})
_SUFFIXES = _TEXTS | _TABLES | CONVERTED
FILES_LEFT_OUT = "files_left_out_"
"""Prefix of the manifest's counts of files that are no documents; the file ending follows it."""
_MOST_NAMED = 5
"""Most files, or cells of a row, that a message names."""
_MAX_HEADER_CHARACTERS = 200


def folder_documents(
    folder: Path, aside: Iterable[Path | None], headers: dict[str, Sequence[str]] | None = None
) -> list[SourceDocument]:
    """Return the documents of all files below `folder` that hold texts or tables, by path.

    Args:
        folder: a folder of files.
        aside: files in it that are not documents.
        headers: receives the first row of each table, which is no document, by the table's name.

    Raises:
        KnowledgeError: the folder does not exist, a file cannot be parsed, or the packages are not
            installed that parse it.
    """
    if not folder.is_dir():
        raise KnowledgeError(f"{folder}: no such folder; set knowledge.path to a folder of texts")
    paths = [
        path
        for path in _files(folder, aside)
        if path.suffix.lower() in _SUFFIXES and _is_inside(path, folder)
    ]
    _refuse_names_that_are_no_text(folder, paths)
    _refuse_what_nothing_reads(folder, paths)
    headers = {} if headers is None else headers
    documents: list[SourceDocument] = []
    unreadable: list[str] = []
    with Converter() as converter:
        for path in paths:
            name = path.relative_to(folder).as_posix()
            try:
                documents += _file_documents(path, name, converter, headers)
            except UnreadableError as reason:
                unreadable.append(f"{name} ({reason})")
                if len(unreadable) == _MOST_NAMED:
                    break
    if unreadable:
        raise KnowledgeError(
            f"{folder}: cannot be read: {'; '.join(unreadable)}. Mend them, save them as text, or "
            "move them out of the folder"
        )
    return documents


def _refuse_names_that_are_no_text(folder: Path, paths: Iterable[Path]) -> None:
    """Refuse names of other encodings than UTF-8, which could not be ids of documents."""
    for path in paths:
        name = os.fsencode(path.relative_to(folder))
        try:
            name.decode()
        except UnicodeDecodeError as error:
            raise KnowledgeError(
                f"{folder}: the name of the file {name!r} is not UTF-8. Rename the file, for "
                "example: convmv -f latin1 -t utf8 -r --notest ."
            ) from error


def _refuse_what_nothing_reads(folder: Path, paths: Sequence[Path]) -> None:
    endings = {path.suffix.lower() for path in paths} & CONVERTED
    missing = {ending for ending in endings if not is_convertible(ending)}
    names = [
        path.relative_to(folder).as_posix() for path in paths if path.suffix.lower() in missing
    ]
    if names:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        raise KnowledgeError(
            f"{folder}: the packages are not installed that read {', '.join(names[:_MOST_NAMED])}"
            f"{more}: {INSTALL}, or move the files out of the folder"
        )


def files_left_out(folder: Path, aside: Iterable[Path | None]) -> Counter[str]:
    """Number of files below `folder` that are no documents, by ending.

    A link that leads out of the folder is left out: what it points to was not given as knowledge.
    """
    found: Counter[str] = Counter()
    linked = sum(path.is_symlink() and path.is_dir() for path in folder.rglob("*"))
    if linked:
        found["linked_folders"] = linked
    for path in _files(folder, aside):
        if not _is_inside(path, folder):
            found["links_out_of_the_folder"] += 1
        elif path.suffix.lower() not in _SUFFIXES:
            ending = os.fsencode(path.suffix).decode(errors="replace").lower().lstrip(".")
            found[f"{FILES_LEFT_OUT}{ending or 'none'}"] += 1
    return found


def header_notes(headers: Mapping[str, Sequence[str]]) -> list[str]:
    """What the log says of the first rows of tables, by name; a number in one may be a value."""
    doubtful = {
        name: header
        for name, header in headers.items()
        if any(is_number(folded_name(cell)) for cell in header)
    }
    certain = {name: header for name, header in headers.items() if name not in doubtful}
    notes: list[str] = []
    if certain:
        notes.append(f"first rows are headers, and no documents: {_listed(certain)}")
    if doubtful:
        notes.append(
            "warning: first rows are taken for headers, though they hold numbers: "
            f"{_listed(doubtful)}. If they are rows like the others, add a row with the names of "
            "the columns above them"
        )
    return notes


def _listed(headers: Mapping[str, Sequence[str]]) -> str:
    listed = [
        f"{name} ({', '.join(header[:_MOST_NAMED])})"[:_MAX_HEADER_CHARACTERS]
        for name, header in islice(headers.items(), _MOST_NAMED)
    ]
    more = len(headers) - len(listed)
    return "; ".join(listed) + (f"; and {more} more" if more else "")


def _files(folder: Path, aside: Iterable[Path | None]) -> list[Path]:
    others = {path.resolve() for path in aside if path}
    found: list[Path] = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.resolve() in others:
            continue
        # hidden, in a hidden folder, or what an office program leaves open
        parts = path.relative_to(folder).parts
        if path.name.startswith("~$") or any(part.startswith(".") for part in parts):
            continue
        found.append(path)
    return found


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _file_documents(
    path: Path, name: str, converter: Converter, headers: dict[str, Sequence[str]]
) -> list[SourceDocument]:
    """The documents of a file; none of a text without a line in it.

    Raises:
        UnreadableError: it cannot be converted, or a table or converted file holds no text.
    """
    ending = path.suffix.lower()
    documents: list[SourceDocument] = []
    if ending == ".jsonl":
        for line in read_json_lines(path):
            given = line.row.get("id")
            document_id = f"{name}:{line.number}" if given in (None, "") else str(given)
            lines = tuple(lines_of(line.contents()))
            documents.append(SourceDocument(f"document:{document_id}", line.text("title"), lines))
        return documents
    if ending in _TEXTS:
        return _text_document(name, path.stem, read_text(path), is_marked_up=ending == ".md")
    if ending in _TABLES:
        documents = list(_row_documents(_rows(path), name, path.stem, headers))
    else:
        found = converter.convert(path)
        documents = _text_document(name, found.title or path.stem, found.text, is_marked_up=True)
        for sheet, rows in found.tables.items():
            numbered = enumerate(rows, 1)
            documents += _row_documents(numbered, f"{name}:{sheet}", path.stem, headers)
    if not documents:
        raise UnreadableError(
            "no row of cells below its header"
            if ending in _TABLES
            else "no text in it; a scan needs text recognition first"
        )
    return documents


def _text_document(name: str, title: str, text: str, *, is_marked_up: bool) -> list[SourceDocument]:
    if is_marked_up:
        heading, text = _heading_and_text(with_plain_raising(text))
        title = heading or title
    lines = tuple(lines_of(text))
    return [SourceDocument(f"document:{name}", title, lines)] if lines else []


_DELIMITERS = ",;\t|"
_ONE_COLUMN = "\x1f"
"""A sign that no table has."""
_SEEN_ROWS = 50


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each row."""
    text = read_text(path)
    delimiter = _delimiter(text)
    # strict: an open quotation mark would take the rows below it into its cell
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begun = 1
    try:
        for cells in rows:
            yield rows.line_num, [" ".join(cell.split()) for cell in cells]
            begun = rows.line_num + 1
    except csv.Error as error:
        raise UnreadableError(
            f"the row of line {begun}: {error}; a cell that begins with a quotation mark ends with "
            "one, and has those in it doubled"
        ) from error


def _delimiter(text: str) -> str:
    """The sign that parts the first rows into equal numbers of cells, of several the most.

    A table with one column may hold sentences with commas, which part no cells.
    """
    first = next((line for line in text.splitlines() if line.strip()), "")

    def cells(delimiter: str) -> list[int]:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        try:
            return [len(row) for row in islice(rows, _SEEN_ROWS) if any(map(str.strip, row))]
        except csv.Error:  # told with its line when the rows are read
            return []

    def evenness(delimiter: str) -> tuple[float, int, int]:
        counts = cells(delimiter)
        columns = counts[0] if counts else 0
        even = counts.count(columns) / len(counts) if columns > 1 else 0.0
        return even, columns, first.count(delimiter)

    found = max(_DELIMITERS, key=evenness)
    return found if found in first or len(set(cells(found))) <= 1 else _ONE_COLUMN


def _row_documents(
    rows: Iterable[tuple[int, Sequence[str]]],
    name: str,
    otherwise: str,
    headers: dict[str, Sequence[str]],
) -> Iterator[SourceDocument]:
    """A document per row below the first: "Ada; born: 1815; city: London", titled by its name.

    The name is the cell of the column `title` or `name`, or the first cell; `otherwise` if empty.
    A row is a document of its own so that splits can share a table out.
    """
    filled = ((number, cells) for number, cells in rows if any(cells))
    _, header = next(filled, (0, ()))
    headers[name] = header
    folded = [column.lower() for column in header]
    named = next((folded.index(one) for one in ("title", "name") if one in folded), 0)
    for number, cells in filled:
        texts = [
            f"{header[place]}: {cell}" if place < len(header) and header[place] else cell
            for place, cell in enumerate(cells)
            if cell
        ]
        title = (cells[named] if named < len(cells) else "") or otherwise
        yield SourceDocument(f"document:{name}:{number}", title, tuple(lines_of("; ".join(texts))))


_FRONT_MATTER = re.compile(
    r"\A(?:---[ \t]*\n(.*?\n)?(?:---|\.\.\.)|\+\+\+[ \t]*\n(.*?\n)?\+\+\+)[ \t]*(?:\n|\Z)",
    re.DOTALL,
)
"""YAML, or TOML between plus signs, as Hugo has it."""
_TITLE_LINE = re.compile(r"^title(?::|[ \t]*+=)[ \t]*+([^ \t\n].*)$", re.MULTILINE)
_UNDERLINE = re.compile(r"[ \t]{0,3}(?:=+|-{2,})[ \t]*")
_MIN_QUOTED = len("'a'")
_FENCE = re.compile(r"[ \t]{0,3}(```|~~~)")
_HEADING_MARKS = re.compile(r"#{1,6}[ \t]+")


def _heading_and_text(text: str) -> tuple[str, str]:
    """The title of a Markdown text, "" if it has none, and the text without it.

    It is `title:` of the front matter, else the first heading outside of fences and comments.
    """
    text = text.replace("\r\n", "\n")
    matter = _FRONT_MATTER.match(text)
    named = _TITLE_LINE.search(matter[1] or matter[2] or "") if matter else None
    text = text[matter.end() :] if matter else text

    kept: list[str] = []  # what stands between the comments
    place = 0
    while (start := text.find("<!--", place)) >= 0 and (end := text.find("-->", start)) >= 0:
        kept.append(text[place:start])
        place = end + len("-->")
    text = "".join([*kept, text[place:]])

    if named is not None:
        return _unquoted(named[1].rstrip(" \t")), text
    lines = text.split("\n")
    fence = ""
    for number, line in enumerate(lines):
        if mark := _FENCE.match(line):
            fence = mark[1] if not fence else "" if mark[1] == fence else fence
        elif not fence and (heading := _heading_in(line)):
            return heading, "\n".join([*lines[:number], *lines[number + 1 :]])
        elif not fence and _is_underlined(lines, number):
            return line.strip(), "\n".join([*lines[:number], *lines[number + 2 :]])
    return "", text


def _is_underlined(lines: Sequence[str], number: int) -> bool:
    """Whether a line by itself stands above a line of = or -, which makes it a heading."""
    above, below = lines[number - 1] if number else "", lines[number + 1 : number + 2]
    is_text = any(map(str.isalnum, lines[number])) and not lines[number].lstrip().startswith("|")
    return is_text and not above.strip() and bool(below and _UNDERLINE.fullmatch(below[0]))


def _unquoted(value: str) -> str:
    is_quoted = len(value) >= _MIN_QUOTED and value[0] in "'\"" and value[0] == value[-1]
    return value[1:-1] if is_quoted else value


def _heading_in(line: str) -> str:
    """The text of a heading, without marks at its end ("## Lyon ##", but "# C#"); "" if none."""
    marks = _HEADING_MARKS.match(line)
    text = line[marks.end() :].rstrip(" \t") if marks else ""
    bare = text.rstrip("#")
    return text if bare and bare[-1] not in " \t" else bare.rstrip(" \t")
