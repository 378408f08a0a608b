"""An index of a run's attempts in SQLite, in the viewer's cache: lists and search read it.

It is made from the streams, as far as they reach, and follows those that grow: first the summaries,
which take a second for 200,000 attempts, then the words of the messages, which take a minute. A
thread does both in small transactions, so that answers meanwhile show what is there.

A segment is known by its file and its first bytes: one that a resumed run has written again is read
again, and the attempts of the former one are forgotten.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import sqlite3
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from espalier.records import EspalierError
from espalier.records.episodes import EPISODES, episode_summary, is_lost
from espalier.records.streams import IndexEntry, Segment, read_index, read_line, segments
from espalier_ui.remote import RemoteRun
from espalier_ui.sources import SOURCES, Source, sources_of

_VERSION = 1
"""Of the tables; an index of another version is made anew."""
# an index that ends with the order of lists is taken for them: SQLite, which has no counts of the
# values here, holds the order to be worth more than a condition, and would read a whole source
_TABLES = """
CREATE TABLE segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT, source INTEGER, number INTEGER, identity TEXT, path TEXT,
    bytes INTEGER, worded INTEGER, UNIQUE (source, number)
);
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, segment INTEGER, source INTEGER, number INTEGER,
    offset INTEGER, step INTEGER, task TEXT, reward REAL, is_right INTEGER,
    finish TEXT, failure TEXT, calls INTEGER, turns INTEGER, tokens INTEGER,
    sampled_tokens INTEGER, logprob REAL, trained INTEGER, shown TEXT
);
CREATE INDEX by_step ON attempts (source, step, number, offset);
CREATE INDEX by_task ON attempts (task, source, step, number, offset);
CREATE INDEX by_place ON attempts (source, number, offset);
CREATE INDEX by_segment ON attempts (segment);
CREATE INDEX by_failure ON attempts (source, failure, step);
CREATE TABLE uses (attempt INTEGER, source INTEGER, tool TEXT, calls INTEGER);
CREATE INDEX uses_by_attempt ON uses (attempt);
CREATE INDEX uses_by_tool ON uses (source, tool);
CREATE VIRTUAL TABLE words USING fts5(
    system, user, assistant, tool, content='', columnsize=0,
    tokenize="unicode61 remove_diacritics 2"
);
"""
ROLES = ("system", "user", "assistant", "tool")
_ROWS_AT_ONCE = 2000
_PATIENCE_S, _FIRST_PATIENCE_S = 1.0, 5.0
_WORDED_AT_ONCE = 200
_LARGEST = 1 << 53
_LONGEST_TEXT = 1 << 20
"""Characters of one attempt's messages that search can find."""


class IndexState(NamedTuple):
    """How far an index has come."""

    attempts: dict[str, int]
    """By source."""
    worded: float
    """Share of the attempts whose words are indexed, 0-1."""


class _Look(NamedTuple):
    """How far a segment was read, and the size that it had."""

    end: int
    size: int


class _File(NamedTuple):
    """A file at a look: a segment's, or the index itself, of which only the inode counts."""

    source: str
    path: Path
    inode: int
    size: int
    changed_ns: int


class RunIndex:
    """The index of one run; reading is safe from every thread."""

    def __init__(self, run_dir: Path, cache: Path, remote: RemoteRun | None = None) -> None:
        """Open it.

        Args:
            run_dir: the run's folder.
            cache: the viewer's folder for this run.
            remote: what fills the folder from S3; None where it is the run itself.
        """
        self._run_dir, self._cache, self._remote = run_dir, cache, remote
        self.is_searched = remote is None
        """Whether words are indexed: of a run in S3 all attempts have to be brought for that."""
        self._path = cache / "index.sqlite"
        self._lock = threading.Lock()
        self._is_made = False
        self._wanted = threading.Condition()
        self._asked = self._done = 0
        self._sources: list[Source] = []
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._looked_at: dict[int, _Look] = {}
        """By the segment's row."""
        self._files: list[_File | None] | None = None
        """What the last look saw: where it is the same there is nothing to take in."""
        self._num_changes = 0
        self._state: tuple[int, IndexState] | None = None
        """How far the index had come after that many changes."""

    @property
    def sources(self) -> list[Source]:
        """The run's sources, as of the last look."""
        return self._sources

    def follow(self, patience_s: float | None = None) -> None:
        """Ask for a look at the streams, and wait a moment for the summaries of what is new.

        Args:
            patience_s: how long; None is a second, or five for the first look.
        """
        with self._wanted:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="index", daemon=True)
                self._thread.start()
            self._asked += 1
            number = self._asked
            self._wanted.notify_all()
            if patience_s is None:
                patience_s = _PATIENCE_S if self._done else _FIRST_PATIENCE_S
            self._wanted.wait_for(lambda: self._done >= number or self._is_closed, patience_s)

    def want_words(self) -> None:
        """Index the words of the messages from now on, where that waits for the first search."""
        self.is_searched, self._files = True, None

    def close(self) -> None:
        """End the thread."""
        with self._wanted:
            self._is_closed = True
            self._wanted.notify_all()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that cannot write."""
        # the file is there before its tables are: the thread may be about to make them
        if not self._is_made or not self._path.exists():
            self._make()
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
            connection.row_factory = sqlite3.Row
            try:
                yield connection
            except sqlite3.Error as error:
                if _is_damaged(error):
                    self._discard()
                raise

    def state(self) -> IndexState:
        """Return how far the index has come."""
        kept, num_changes = self._state, self._num_changes
        if kept is not None and kept[0] == num_changes and self._path.exists():
            return kept[1]
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT source, count(*) FROM attempts GROUP BY source"
            ).fetchall()
            total, worded = connection.execute(
                "SELECT coalesce(sum(bytes), 0), coalesce(sum(min(worded, bytes)), 0) FROM segments"
            ).fetchone()
        attempts = {SOURCES[source]: count for source, count in rows}
        state = IndexState(attempts, round(worded / total, 4) if total else 1.0)
        self._state = num_changes, state
        return state

    def record(self, source: str, number: int, offset: int) -> dict[str, Any] | None:
        """Return the record of an attempt; None if there is none at this place."""
        folder = next((one.folder for one in self._sources if one.name == source), None)
        if folder is None:
            return None
        found = (one for one in segments(folder, EPISODES) if one.number == number)
        segment = next(found, None)
        if segment is not None and self._remote is not None:
            with self.reading() as connection:
                (end,) = connection.execute(
                    "SELECT min(offset) FROM attempts WHERE source = ? AND number = ? "
                    "AND offset > ?",
                    (SOURCES.index(source), number, offset),
                ).fetchone()
            self._remote.bring(segment.path, offset, end or segment.path.stat().st_size)
        return None if segment is None else read_line(segment, offset)

    # ------------------------------------------------------------------------------- writing

    def _work(self) -> None:
        """Follow the streams when asked; index words in between."""
        has_rest = False
        while True:
            with self._wanted:
                if not has_rest:
                    self._wanted.wait_for(lambda: self._asked > self._done or self._is_closed)
                if self._is_closed:
                    return
                number = self._asked
            try:
                if number > self._done:
                    has_rest = self._take_in_summaries() or has_rest
                    with self._wanted:
                        self._done = number
                        self._wanted.notify_all()
                if has_rest:
                    has_rest = self._take_in_words()
                    self._num_changes += 1
            except (OSError, sqlite3.Error, EspalierError) as error:
                # the disk of the cache is full, or a folder was removed meanwhile: the next request
                # asks again
                has_rest, self._files = False, None
                self._num_changes += 1
                if _is_damaged(error):
                    self._discard()
                with self._wanted:
                    self._done = number
                    self._wanted.notify_all()

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Within the block nobody else writes: no thread, and no other viewer with this cache."""
        with self._lock:
            self._cache.mkdir(parents=True, exist_ok=True)
            with (self._cache / "index.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

    def _make(self) -> None:
        """Make the tables, if they are missing or of another version."""
        with self._alone():
            if _version(self._path) != _VERSION:
                self._remove_files()
                with closing(_opened(self._path)) as connection:
                    connection.executescript(f"{_TABLES} PRAGMA user_version = {_VERSION};")
                self._files = None
            self._is_made = True

    def _discard(self) -> None:
        """Remove a damaged index: the next look makes it anew."""
        with self._alone():
            self._remove_files()
            self._is_made, self._files = False, None

    def _remove_files(self) -> None:
        for path in self._cache.glob("index.sqlite*"):
            path.unlink(missing_ok=True)

    def _take_in_summaries(self) -> bool:
        """Read the summaries of new attempts; return whether any stream has changed."""
        self._make()
        if self._remote is not None:
            self._remote.refresh()
        self._sources = sources_of(self._run_dir, self._cache)
        found = {source.name: segments(source.folder, EPISODES) for source in self._sources}
        files = [_file(name, segment) for name, those in found.items() for segment in those]
        # the index itself as well: another viewer may have made it anew
        files.append(_File("", self._path, self._path.stat().st_ino, 0, 0))
        if files == self._files:
            return False
        with self._alone(), closing(_opened(self._path)) as connection:
            for place, name in enumerate(SOURCES):
                _forget_others(connection, place, found.get(name, []))
                for segment in found.get(name, []):
                    _take_in_segment(connection, place, segment, self._looked_at)
        self._files = files
        self._num_changes += 1
        return True

    def _take_in_words(self) -> bool:
        """Index the words of some attempts; return whether any are left."""
        if not self.is_searched:
            return False
        with self._alone(), closing(_opened(self._path)) as connection:
            row = connection.execute(
                "SELECT id, source, number, path, worded FROM segments WHERE worded < bytes "
                "ORDER BY source, number DESC LIMIT 1"
            ).fetchone()
            if row is None:
                return False
            segment = Segment(Path(row["path"]), EPISODES, row["number"], is_finished=True)
            rows = connection.execute(
                "SELECT id, offset FROM attempts WHERE segment = ? AND offset >= ? "
                "ORDER BY offset LIMIT ?",
                (row["id"], row["worded"], _WORDED_AT_ONCE + 1),
            ).fetchall()
            now = rows[:_WORDED_AT_ONCE]
            if self._remote is not None and now:
                end = rows[-1]["offset"] if len(rows) > len(now) else segment.path.stat().st_size
                self._remote.bring(segment.path, now[0]["offset"], end)
            worded = [(one["id"], *_words(read_line(segment, one["offset"]))) for one in now]
            with connection:
                connection.executemany(
                    "INSERT INTO words (rowid, system, user, assistant, tool) "
                    "VALUES (?, ?, ?, ?, ?)",
                    worded,
                )
                rest = rows[_WORDED_AT_ONCE]["offset"] if len(rows) > _WORDED_AT_ONCE else None
                connection.execute(
                    "UPDATE segments SET worded = coalesce(?, bytes) WHERE id = ?",
                    (rest, row["id"]),
                )
            return True


def _is_damaged(error: Exception) -> bool:
    """Whether the file is no index (any more), and not only locked or on a full disk."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest is a detail of it
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _version(path: Path) -> int | None:
    """Return the version of an index's tables; None if the file is damaged."""
    try:
        with closing(_opened(path)) as connection:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error as error:
        if _is_damaged(error):
            return None
        raise


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        # what a crash loses is read again
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -16000")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _file(source: str, segment: Segment) -> _File | None:
    """Return a segment's file; None if it was renamed at this moment."""
    try:
        status = segment.path.stat()
    except FileNotFoundError:
        return None
    return _File(source, segment.path, status.st_ino, status.st_size, status.st_mtime_ns)


def _identity(segment: Segment) -> str:
    """Return what tells a segment from another file of its name; its first record has a time."""
    with segment.path.open("rb") as stream:
        head = stream.read(64)
    return f"{segment.path.stat().st_ino}:{hashlib.sha256(head).hexdigest()[:16]}"


def _forget_others(connection: sqlite3.Connection, source: int, found: Sequence[Segment]) -> None:
    """Forget segments that are gone or were written again."""
    now: dict[int, str] = {}
    for segment in found:
        try:
            now[segment.number] = _identity(segment)
        except FileNotFoundError:
            continue  # renamed at this moment: the next look finds it
    for row in connection.execute(
        "SELECT id, number, identity, bytes FROM segments WHERE source = ?", (source,)
    ).fetchall():
        path = next((one.path for one in found if one.number == row["number"]), None)
        if now.get(row["number"]) == row["identity"] and path is not None:
            try:
                if path.stat().st_size >= row["bytes"]:
                    connection.execute(
                        "UPDATE segments SET path = ? WHERE id = ?", (str(path), row["id"])
                    )
                    connection.commit()
                    continue
            except FileNotFoundError:
                continue
        with connection:
            connection.execute(
                "DELETE FROM uses WHERE attempt IN (SELECT id FROM attempts WHERE segment = ?)",
                (row["id"],),
            )
            connection.execute("DELETE FROM attempts WHERE segment = ?", (row["id"],))
            connection.execute("DELETE FROM segments WHERE id = ?", (row["id"],))


def _take_in_segment(
    connection: sqlite3.Connection, source: int, segment: Segment, looked_at: dict[int, _Look]
) -> None:
    try:
        identity = _identity(segment)
    except FileNotFoundError:
        return
    row = connection.execute(
        "SELECT id, bytes FROM segments WHERE source = ? AND number = ?", (source, segment.number)
    ).fetchone()
    if row is None:
        with connection:
            key = connection.execute(
                "INSERT INTO segments (source, number, identity, path, bytes, worded) "
                "VALUES (?, ?, ?, ?, 0, 0)",
                (source, segment.number, identity, str(segment.path)),
            ).lastrowid
        assert key is not None, "the row was inserted"
        start = 0
    else:
        key, start = row["id"], row["bytes"]
    size = segment.path.stat().st_size
    # a line that a killed writer has torn may be large, and would be read at each look
    if size == start or looked_at.get(key) == _Look(start, size):
        return
    entries: list[IndexEntry] = []
    end = start
    for entry in read_index(segment, start):
        entries.append(entry)
        end = entry.offset + entry.num_bytes
        if len(entries) == _ROWS_AT_ONCE:
            _add(connection, source, segment, key, entries)
            entries = []
    _add(connection, source, segment, key, entries)
    looked_at[key] = _Look(end, size)


def _add(
    connection: sqlite3.Connection,
    source: int,
    segment: Segment,
    key: int,
    entries: Sequence[IndexEntry],
) -> None:
    if not entries:
        return
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM attempts").fetchone()
    (kept,) = connection.execute(
        "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'attempts'"
    ).fetchone()
    number = max(last, kept)
    rows: list[tuple[Any, ...]] = []
    uses: list[tuple[Any, ...]] = []
    for entry in entries:
        summary = entry.summary or _summary(segment, entry)
        columns = _columns(summary) if summary is not None else None
        if summary is None or columns is None:
            continue  # a record of something else, or a damaged one
        number += 1
        rows.append((number, key, source, segment.number, entry.offset, entry.step, *columns))
        tools = summary.get("tools")
        if isinstance(tools, Mapping):
            uses += [
                (number, source, _writable(str(tool)), calls)
                for tool, calls in tools.items()
                if type(calls) is int and 0 < calls < _LARGEST
            ]
    end = entries[-1].offset + entries[-1].num_bytes
    with connection:
        connection.executemany(f"INSERT INTO attempts VALUES ({', '.join('?' * 18)})", rows)
        connection.executemany("INSERT INTO uses VALUES (?, ?, ?, ?)", uses)
        connection.execute("UPDATE segments SET bytes = ? WHERE id = ?", (end, key))


def _summary(segment: Segment, entry: IndexEntry) -> dict[str, Any] | None:
    record = read_line(segment, entry.offset)
    try:
        return None if record is None else episode_summary(record)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError):
        return None
    except RecursionError:  # arguments that lie too deep in each other
        return None


def _columns(summary: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the columns from `task` on; None if the summary is of something else."""
    try:
        trained, logprob = summary["trained"], summary["mean_logprob"]
        counts = [summary[name] for name in ("calls", "turns", "tokens", "sampled_tokens")]
        if not all(type(count) is int and 0 <= count < _LARGEST for count in counts):
            return None
        return (
            _writable(str(summary["task"])),
            float(summary["reward"]),
            int(bool(summary["right"])),
            _writable(str(summary["finish"])),
            failure_of(summary),
            *counts,
            None if logprob is None else float(logprob),
            None if trained is None else int(bool(trained)),
            _writable(json.dumps(summary, ensure_ascii=False)),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


CAUSES = {
    "lost": "infrastructure lost the attempt: it has no reward",
    "program_broke_sandbox": "a program of the policy ended its own sandbox",
    "unknown_tool": "it called a tool that does not exist",
    "unread_call": "its last message is no answer, and no call that can be read",
    "repeats": "it made the same call three times or more",
    "max_turns": "it used up its turns",
    "max_tokens": "it used up its tokens",
    "failed_calls": "answered wrongly after its last call had failed",
    "no_call": "answered wrongly without a call of a tool",
    "wrong_answer": "answered, and the verifier refused it",
}
"""Why an attempt was not right: an attempt has the first cause that fits, in this order."""


def failure_of(summary: Mapping[str, Any]) -> str:
    """Return the cause of `CAUSES`; empty for a right attempt."""
    finish = summary["finish"]
    if is_lost(str(finish)):
        return "lost"
    if summary["right"]:
        return ""
    found = {
        "program_broke_sandbox": finish == "program_broke_sandbox",
        "unknown_tool": summary["unknown_calls"] > 0,
        "unread_call": finish == "parse_error",
        "repeats": summary["most_equal_calls"] >= 3,
        "max_turns": finish == "max_turns",
        "max_tokens": finish == "max_tokens",
        "failed_calls": bool(summary["last_call_failed"]),
        "no_call": summary["calls"] == 0,
    }
    return next((cause for cause, fits in found.items() if fits), "wrong_answer")


def message_text(message: Mapping[str, Any]) -> str:
    """Return all that a message says: thought, calls and content, in this order."""
    parts = [message.get("thought") or ""]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, Mapping):
            parts.append(f"{call.get('name')} {_json_text(call.get('arguments'))}")
    parts.append(message.get("content") or "")
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def _json_text(value: object) -> str:
    try:
        # compact, as the page writes it: characters are counted in both
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:  # it lies too deep in itself to be searched
        return ""


def _words(record: Mapping[str, Any] | None) -> list[str]:
    """Return the texts of the messages by role, in the order of `ROLES`."""
    texts: dict[str, list[str]] = {role: [] for role in ROLES}
    messages = record.get("messages") if record else None
    for message in messages if isinstance(messages, list) else []:
        role = message.get("role") if isinstance(message, Mapping) else None
        if isinstance(role, str) and role in texts:
            texts[role].append(message_text(message))
    return [_writable("\n".join(texts[role]))[:_LONGEST_TEXT] for role in ROLES]


def _writable(text: str) -> str:
    """Return the text without lone surrogates, which SQLite cannot take."""
    return text.encode(errors="replace").decode()
