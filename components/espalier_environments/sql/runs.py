"""Runs queries in sandboxes, many at a time."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Strict, TypeAdapter, ValidationError

from espalier.config import MOST_PROGRAM_S
from espalier.environments.contract import sandbox_losses
from espalier.rewards.result_rows import Row
from espalier.sandbox import Sandbox, SandboxError, SandboxLost
from espalier.sandbox.call_time import call_waits
from espalier.sandbox.choice import PoolThread
from espalier_environments.sql.config import SqlConfig
from espalier_environments.sql.databases import MAX_FILE_BYTES, Database
from espalier_environments.sql.inside import ANSWERS

RequestKind = Literal["query", "tables", "table"]
_Cell = Annotated[int, Strict()] | Annotated[float, Strict()] | Annotated[str, Strict()] | None

_BATCH_S = 30.0
"""No query of a run starts later than this, so that the last one, of at most 20 s, has time to
end."""
_MAX_RESULT_BYTES = 256 * 2**10


class QueryResult(BaseModel):
    """The rows of a query, or the reason why there are none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[_Cell, ...], ...] = ()
    error: str = ""

    @property
    def found(self) -> Sequence[Row] | None:
        """The rows; None if the query failed."""
        return None if self.error else self.rows


_ANSWERS = TypeAdapter(list[QueryResult | None])


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request that waits for its answer."""

    kind: RequestKind
    text: str
    database: Database
    answer: asyncio.Future[QueryResult]
    alone: bool = False
    """Whether it must run alone, because a run with others was lost or killed."""


class QueryRuns:
    """Answers requests about databases, in the sandboxes of a pool.

    Requests that wait while the sandboxes are busy run together, each in its own process. If such a
    run is lost or killed, each of its requests runs again alone: queries have no side effects.

    Args:
        sandboxes: the pool to borrow from.
        config: limits of queries.
        judging: whether these are gold queries (`PoolThread.claim`).
    """

    def __init__(self, sandboxes: PoolThread, config: SqlConfig, *, judging: bool = False) -> None:
        self._sandboxes = sandboxes
        self._config = config
        self._judging = judging
        self._waiting: deque[_Waiting] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    async def ask(self, database: Database, kind: RequestKind, text: str = "") -> QueryResult:
        """Return the answer to one request.

        Raises:
            EnvironmentLostError: the sandbox was lost for an outside cause, or none was free.
            ProgramBrokeSandboxError: the query ended its sandbox.
            SandboxUnavailable: no sandboxes can be created.
        """
        with sandbox_losses():
            return await self._sandboxes.run(self.ask_here(database, kind, text))

    async def ask_here(self, database: Database, kind: RequestKind, text: str) -> QueryResult:
        """Return the answer to one request, on the pool's loop, with sandbox errors unchanged."""
        answer: asyncio.Future[QueryResult] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(kind, text, database, answer))
        if len(self._workers) < self._config.sandbox.size:
            # a fresh context: the run must not inherit the time limit of the call that happens to
            # start it
            self._workers.add(asyncio.create_task(self._work(), context=contextvars.Context()))
        with call_waits():
            return await answer

    async def _work(self) -> None:
        """Borrow sandboxes until nothing waits; errors are set on the requests that failed."""
        worker = asyncio.current_task()
        assert worker is not None, "this coroutine runs in a task"
        try:
            while self._waiting:
                await self._run_next()
        finally:
            # without an await after the last check: a new request would rely on this worker
            self._workers.discard(worker)

    async def _run_next(self) -> None:
        taken: list[_Waiting] = []
        try:
            async with self._sandboxes.claim(judging=self._judging) as sandbox:
                taken = self._take()
                if taken:
                    await self._answer(sandbox, taken)
        except SandboxError as error:
            self._failed(taken or self._take(), error)

    def _take(self) -> list[_Waiting]:
        """Return the next requests of one run, without those that nobody waits for any more."""
        taken: list[_Waiting] = []
        sizes: dict[str, int] = {}
        while self._waiting and len(taken) < self._config.queries_per_run:
            first = self._waiting[0]
            if first.answer.done():
                self._waiting.popleft()
                continue
            if first.alone:
                return taken or [self._waiting.popleft()]
            sizes[first.database.file] = len(first.database.content)
            if taken and sum(sizes.values()) > MAX_FILE_BYTES:  # what a sandbox's disk holds
                return taken
            taken.append(self._waiting.popleft())
        return taken

    def _failed(self, taken: Sequence[_Waiting], error: SandboxError) -> None:
        for one in taken:
            if isinstance(error, SandboxLost) and len(taken) > 1:
                self._again_alone(one)
            elif not one.answer.done():
                one.answer.set_exception(error)

    def _again_alone(self, one: _Waiting) -> None:
        one.alone = True
        self._waiting.append(one)

    async def _answer(self, sandbox: Sandbox, taken: Sequence[_Waiting]) -> None:
        for database in {one.database.file: one.database for one in taken}.values():
            await sandbox.put(database.file, database.content)
        asked = {
            "limits": {
                "max_seconds": self._config.query_timeout_s,
                "batch_seconds": _BATCH_S,
                "max_rows": self._config.max_rows,
                "max_bytes": _MAX_RESULT_BYTES,
            },
            "requests": [
                {"kind": one.kind, "text": one.text, "file": one.database.file} for one in taken
            ],
        }
        ended = await sandbox.run_python(
            inside_program(), stdin=json.dumps(asked).encode(), timeout_s=MOST_PROGRAM_S
        )
        answers = await _read_answers(sandbox, len(taken)) if ended.succeeded else None
        fault = "the query ended its process"
        if ended.killed_by is not None:
            limit = ended.killed_by.replace("_", " ")
            fault = f"the query was killed by the limit of {limit}"
        for place, one in enumerate(taken):
            if answers is None and len(taken) > 1:
                self._again_alone(one)
            elif answers is not None and answers[place] is None:
                self._waiting.append(one)
            elif not one.answer.done():
                found = answers[place] if answers else None
                one.answer.set_result(found or QueryResult(error=fault))


async def _read_answers(sandbox: Sandbox, count: int) -> list[QueryResult | None] | None:
    """Return the answers that the run wrote; None if there is not one for each request."""
    try:
        found = _ANSWERS.validate_json(await sandbox.get(ANSWERS))
    except ValidationError:
        return None
    return found if len(found) == count else None


@cache
def inside_program() -> str:
    """Return the source of the program that runs in sandboxes."""
    return Path(__file__).with_name("inside.py").read_text(encoding="utf-8")


def written_rows(result: QueryResult) -> str:
    """Return the rows as the answer of an episode: JSON, `null` if the last query failed."""
    return json.dumps(None if result.error else result.rows)


_ROWS = TypeAdapter(tuple[tuple[_Cell, ...], ...] | None)


def read_written_rows(answer: str) -> Sequence[Row] | None:
    """Return the rows in an answer; None if it has none."""
    try:
        return _ROWS.validate_json(answer)
    except ValidationError:
        return None
