"""Answers read-only requests about database files: the program that runs in the sandbox.

It reads {"limits": {...}, "requests": [{"kind", "text", "file"}]} from standard input and writes a
list of {"columns": [...], "rows": [[...]]}, {"error": ...} or null (not started: no time was left)
to the file `ANSWERS`. It imports nothing of espalier, as a sandbox does not have it.

Every request runs in its own process, which is killed if it takes too long, so requests cannot
affect each other. The file is opened immutable and read-only. An authorizer refuses everything but
SELECT (writes, ATTACH, PRAGMA, transactions), and functions that load code or access files. A
progress handler ends a query after `max_seconds`; SQLite's own limits bound its text, nesting and
heap; a result above `max_rows` or `max_bytes` is refused.
"""

import json
import math
import os
import select
import signal
import sqlite3
import sys
import time
from typing import Any

ANSWERS = "answers.json"

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_REFUSED_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
_MOST = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 250_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
}
_HEAP_BYTES = 64 * 2**20
_OPERATIONS_BETWEEN_LOOKS = 2_000
"""Operations of SQLite's virtual machine between two checks of the clock: some 50 microseconds."""
_GRACE_S = 0.5
"""Added to `max_seconds`, for a query that its progress handler does not end."""
_MAX_ERROR = 200
"""Most characters of an error that a policy reads."""


def main() -> None:
    """Answer the requests on standard input."""
    asked = json.load(sys.stdin)
    limits = asked["limits"]
    until = time.monotonic() + limits["batch_seconds"]
    answers = [
        _apart(request, limits) if time.monotonic() < until else None
        for request in asked["requests"]
    ]
    with open(ANSWERS, "w", encoding="ascii") as file:
        json.dump(answers, file)


def _apart(request: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, computed in its own process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps(answered(request, limits)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return json.loads(_read(reading, limits))
    except ValueError:
        return {"error": "the query took too long, or ended its process"}
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _read(pipe: int, limits: dict[str, Any]) -> bytes:
    """Read until the other end is closed, or until time or bytes are used up."""
    until = time.monotonic() + limits["max_seconds"] + _GRACE_S
    content = b""
    while len(content) <= 2 * limits["max_bytes"] + 10 * _MAX_ERROR:
        left = until - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            break
        if not (more := os.read(pipe, 1 << 16)):
            break
        content += more
    return content


def answered(request: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request; any fault is an `error` that a policy can read."""
    try:
        connection = _opened(request["file"])
    except sqlite3.Error as error:
        return {"error": f"the database cannot be opened: {error}"[:_MAX_ERROR]}
    try:
        if request["kind"] == "tables":
            return _result(connection.execute(_TABLES), limits)
        if request["kind"] == "table":
            return _table(connection, request["text"], limits)

        for limit, most in _MOST.items():
            connection.setlimit(limit, most)
        connection.set_authorizer(_authorized)
        until = time.monotonic() + limits["max_seconds"]
        connection.set_progress_handler(lambda: time.monotonic() > until, _OPERATIONS_BETWEEN_LOOKS)
        return _result(connection.execute(request["text"]), limits)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        if "interrupted" in str(error):
            return {"error": "the query took too long"}
        return {"error": (str(error) or type(error).__name__)[:_MAX_ERROR]}
    finally:
        connection.close()


def _opened(path: str) -> sqlite3.Connection:
    uri = f"file:{path}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.text_factory = _text
    connection.execute(f"PRAGMA hard_heap_limit = {_HEAP_BYTES}")
    connection.execute(
        "PRAGMA temp_store = MEMORY"
    )  # sorting in memory is bounded by the heap limit
    connection.execute("PRAGMA trusted_schema = OFF")  # views in the file must not do more either
    return connection


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


def _authorized(action: int, _first: str | None, name: str | None, *_: object) -> int:
    if action == sqlite3.SQLITE_FUNCTION:
        is_refused = (name or "").lower() in _REFUSED_FUNCTIONS
        return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


_TABLES = (
    "SELECT name AS 'table' FROM sqlite_master WHERE type IN ('table', 'view') "
    "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid"
)


def _table(connection: sqlite3.Connection, table: str, limits: dict[str, Any]) -> dict[str, Any]:
    """Return column, type and target of a foreign key, one row per column."""
    columns = connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall()
    if not columns:
        return {"error": f"no such table: {table}"[:_MAX_ERROR]}
    keys = 'SELECT "from", "table", "to" FROM pragma_foreign_key_list(?)'
    refers = {
        column.lower(): f"{other}.{to}" if to else other
        for column, other, to in connection.execute(keys, (table,))
    }
    rows: list[list[object]] = [
        [name, kind.lower(), refers.get(name.lower(), "")] for name, kind in columns
    ]
    return _within(["column", "type", "refers to"], rows, limits)


def _result(cursor: sqlite3.Cursor, limits: dict[str, Any]) -> dict[str, Any]:
    if cursor.description is None:
        return {"error": "that is no query: nothing is selected"}
    rows: list[list[object]] = []
    left = limits["max_bytes"]
    for row in cursor:
        values: list[object] = []
        for value in row:
            # for JSON: a blob as in SQL, an infinite number as text
            if isinstance(value, bytes):
                values.append(f"x'{value.hex()}'")
            elif isinstance(value, float) and not math.isfinite(value):
                values.append(str(value))
            else:
                values.append(value)
        left -= sum(len(value) if isinstance(value, str) else 4 for value in values)
        if len(rows) == limits["max_rows"] or left < 0:
            return _too_large(limits)
        rows.append(values)
    return _within([column[0] for column in cursor.description], rows, limits)


def _within(columns: list[str], rows: list[list[object]], limits: dict[str, Any]) -> dict[str, Any]:
    found = {"columns": columns, "rows": rows}
    is_large = len(rows) > limits["max_rows"] or len(json.dumps(found)) > limits["max_bytes"]
    return _too_large(limits) if is_large else found


def _too_large(limits: dict[str, Any]) -> dict[str, Any]:
    most = f"at most {limits['max_rows']} rows and {limits['max_bytes']} bytes are returned"
    return {"error": f"the result is too large: {most}"}


if __name__ == "__main__":
    main()
