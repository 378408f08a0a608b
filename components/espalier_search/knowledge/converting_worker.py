"""The process that reads PDF, HTML and Office files: a path in, its text or tables out.

    python -PB converting_worker.py DESCRIPTOR

Whoever made a file decides what its parser does: it may loop, fill memory or fetch an address. So
this process has limits of processor time and memory, writes no file, starts no program and reaches
no network. A file that cannot be parsed ends it, with the reason on stderr.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import resource
import sys
import warnings
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

PROCESSOR_S = 300
"""Limit of the processor time for each file, seconds."""
MEMORY_BYTES = 2 * 2**30
"""Limit of the address space; the packages alone take a quarter."""
MAX_CHARACTERS = 20_000_000
"""Most characters of one file's text: ten times a long novel's."""

_ERROR_BYTES = 2**16
"""Most bytes on stderr, which is the only file that is written."""
_Row = list[str]

_PLAIN_WORDS = {
    "strip": ["a", "b", "code", "del", "em", "i", "img", "s", "strike", "strong", "u"],
    "sub_symbol": "<sub>",
    "sup_symbol": "<sup>",
    "escape_asterisks": False,
    "escape_underscores": False,
    "style_map": "p[style-name='Title'] => h1:fresh\nstrike => !",
}
"""Options of markdownify and mammoth: addresses, images and letter shapes are no text."""
_UNSEEN = (
    "[hidden], [style*='display:none' i], [style*='display: none' i], [aria-hidden=true], script,"
    " style, template, noscript, del, s, strike, nav, datalist, select, rt, rp,"
    " sup:has(a[href^='#'])"
)
"""Selectors of elements that are no text of a page."""
_FORBIDDEN = frozenset(
    {"os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.connect", "socket.getaddrinfo",
     "socket.gethostbyname", "socket.sendto", "subprocess.Popen"}
)  # fmt: skip


class TooLongError(Exception):
    """A file holds more text than `MAX_CHARACTERS`."""


def converted(path: Path) -> dict[str, Any]:
    """Return {"text", "title"} of a document, in Markdown, or {"tables": {sheet: rows}}."""
    match path.suffix.lower():
        case ".xlsx":
            return {"tables": _sheets(path)}
        case ".pdf":
            from markitdown.converters import PdfConverter as Reader
        case ".docx":
            from markitdown.converters import DocxConverter as Reader
        case ".pptx":
            from markitdown.converters import PptxConverter as Reader
        case _:
            from markitdown.converters import HtmlConverter as Reader
    from markitdown import StreamInfo

    with path.open("rb") as stream:
        if path.suffix.lower() in (".html", ".htm"):
            found = Reader().convert(_seen(stream), StreamInfo(charset="utf-8"), **_PLAIN_WORDS)
        else:
            found = Reader().convert(stream, StreamInfo(), **_PLAIN_WORDS)
    text = found.markdown
    if len(text) > MAX_CHARACTERS:
        raise TooLongError(f"{len(text):,} characters of text, more than {MAX_CHARACTERS:,}")
    text = paragraphs(text) if path.suffix.lower() == ".pdf" else text
    title = " ".join((found.title or "").split())
    lines = [line for line in text.splitlines() if not _is_drawn(line.strip())]
    if lines and " ".join(lines[0].split()) == title:  # of a page without <body>
        del lines[0]
    return {"text": "\n".join(lines), "title": title}


def _seen(page: BinaryIO) -> BinaryIO:
    """A web page with what a reader sees of it: nothing hidden, no menus, readings or footnotes."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(page, "html.parser")
    for element in soup.select(_UNSEEN):
        element.decompose()
    return io.BytesIO(soup.encode("utf-8"))


def paragraphs(text: str) -> str:
    """The text of a PDF with the lines of a paragraph joined: a PDF holds lines as printed."""
    found: list[list[str]] = []
    last = ""
    for line in map(str.strip, text.replace("\f", "\n\n").split("\n")):
        is_apart = line.startswith(("|", "\u2022", "- ", "* ")) or last.startswith("|")
        if not line or not last or is_apart:
            found.append([line])
        elif last[-1] == "-" and last[-2:-1].isalpha() and line[0].islower():
            found[-1][-1] = found[-1][-1][:-1]
            found[-1].append(line)
        else:
            found[-1] += [" ", line]
        last = line
    return "\n".join("".join(pieces) for pieces in found)


def _is_drawn(line: str) -> bool:
    """Whether it is the rule of a table, a row of empty cells, or an image."""
    is_rule = line.startswith("|") and set(line) <= set("|-: ")
    return is_rule or (line.startswith("![") and line.endswith(")"))


def _sheets(path: Path) -> dict[str, list[_Row]]:
    import openpyxl

    book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
    _refuse_uncalculated(path, book)
    characters, tables = 0, {}
    for sheet in (one for one in book.worksheets if one.sheet_state == "visible"):
        rows = tables[sheet.title] = []
        for row in _cells(sheet.iter_rows()):
            characters += sum(map(len, row))
            if characters > MAX_CHARACTERS:
                raise TooLongError(f"more than {MAX_CHARACTERS:,} characters in its cells")
            rows.append(row)
    return tables


class UncalculatedError(Exception):
    """A formula has no stored value."""


def _refuse_uncalculated(path: Path, values: Any) -> None:  # noqa: ANN401 (an untyped library's)
    """Refuse a workbook whose formulas a program wrote without calculating them."""
    import openpyxl

    formulas = openpyxl.load_workbook(path, read_only=True, keep_links=False)
    for sheet, shown in zip(formulas.worksheets, values.worksheets, strict=True):
        pairs = zip(sheet.iter_rows(), shown.iter_rows(values_only=True), strict=False)
        for row, found in pairs:
            for cell, value in zip(row, found, strict=False):
                if value is None and cell.data_type == "f":
                    raise UncalculatedError(
                        f"{sheet.title}!{cell.coordinate}: a formula without a stored value; open "
                        "the file in a spreadsheet program and save it"
                    )


def _cells(rows: Iterator[tuple[Any, ...]]) -> Iterator[_Row]:
    for row in rows:
        cells = [_cell(one.value, getattr(one, "number_format", "")) for one in row]
        while cells and not cells[-1]:
            cells.pop()
        yield cells


_PERCENT = re.compile(r"0(?:\.(0+))?%")
_ZEROS = re.compile(r"0{2,}")


def _cell(value: object, form: str) -> str:
    """A cell as a person reads it: a day without midnight, a whole number without a fraction.

    Args:
        value: as it is stored.
        form: the format in which it is shown, of which percentages, leading zeros and durations
            are followed.
    """
    if isinstance(value, int | float) and (percent := _PERCENT.fullmatch(form)):
        return f"{value:.{len(percent[1] or '')}%}"
    if isinstance(value, int | float) and _ZEROS.fullmatch(form):
        return f"{round(value):0{len(form)}d}"
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    if isinstance(value, float) and value.is_integer():
        value = f"{value:.0f}"
    return "" if value is None else " ".join(str(value).split())


def _limit_this_process() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_ERROR_BYTES, _ERROR_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_refuse)
    logging.disable()
    warnings.simplefilter("ignore")


def _refuse(event: str, given: tuple[Any, ...]) -> None:
    is_writing = event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if is_writing or event in _FORBIDDEN:
        raise PermissionError(f"{event} while a file is read")


def _limit_processor_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(used.ru_utime + used.ru_stime) + 1 + PROCESSOR_S
    if hard == resource.RLIM_INFINITY or soft < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _main(descriptor: int) -> None:
    _limit_this_process()
    with Connection(descriptor) as client:
        client.send_bytes(b"ready")
        while path := client.recv_bytes():
            _limit_processor_time()
            # a half of a surrogate pair, which a PDF may hold, is no character
            reply = json.dumps(converted(Path(os.fsdecode(path))), ensure_ascii=False)
            client.send_bytes(reply.encode(errors="replace"))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
