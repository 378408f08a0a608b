"""The tools of an episode: queries on its database, and the submission at the end."""

from __future__ import annotations

from collections.abc import Sequence

from espalier.environments.interpreter import shortened
from espalier.environments.tools import Tool, ToolOutput
from espalier_environments.sql.databases import Database
from espalier_environments.sql.runs import QueryResult, QueryRuns, written_rows

NO_ROWS = "(no rows)"
SUBMIT = "submit"


class Session:
    """One episode on a database.

    Args:
        database: the task's database.
        runs: runs the queries.
        max_characters: longer results are cut in their middle.
    """

    def __init__(self, database: Database, runs: QueryRuns, max_characters: int) -> None:
        self._database = database
        self._runs = runs
        self._max_characters = max_characters
        self._last = QueryResult(error="no query was executed")

    def tools(self, declared: Sequence[Tool]) -> tuple[Tool, ...]:
        """Return the declared tools, bound to this session."""
        functions = (self.execute, self.tables, self.describe, self.submit)
        return tuple(
            tool.over(function) for tool, function in zip(declared, functions, strict=True)
        )

    async def execute(self, query: str) -> ToolOutput:
        """Run a query, remember its result, and return its rows."""
        self._last = await self._runs.ask(self._database, "query", query)
        return self._shown(self._last)

    async def tables(self) -> ToolOutput:
        """Return the tables of the database."""
        return self._shown(await self._runs.ask(self._database, "tables"))

    async def describe(self, table: str) -> ToolOutput:
        """Return the columns of a table, their types and foreign keys."""
        return self._shown(await self._runs.ask(self._database, "table", table))

    async def submit(self) -> str:
        """Return the rows of the last query as the answer."""
        return self.answer("")

    def answer(self, _said: str) -> str:
        """Return the rows of the last query, whatever the message says."""
        return written_rows(self._last)

    def _shown(self, result: QueryResult) -> ToolOutput:
        if result.error:
            return ToolOutput(f"error: {result.error}", succeeded=False)
        lines: list[str] = []
        for row in result.rows:
            cells = ["null" if value is None else str(value) for value in row]
            lines.append(" | ".join(cells).strip(" |"))
        return ToolOutput(shortened("\n".join(lines) or NO_ROWS, self._max_characters))


def declared_tools() -> tuple[Tool, ...]:
    """Return the tools with their schemas; a `Session` plays them."""

    async def execute(query: str) -> ToolOutput:
        """Run one SQL query (SQLite, read-only) and read the rows that it returns."""
        raise AssertionError(_ONLY_SCHEMA)

    async def tables() -> ToolOutput:
        """List the tables of the database."""
        raise AssertionError(_ONLY_SCHEMA)

    async def describe(table: str) -> ToolOutput:
        """Read the columns of a table, their types, and what foreign keys refer to."""
        raise AssertionError(_ONLY_SCHEMA)

    async def submit() -> str:
        """Submit the rows of the last query as the answer; nothing can be done after it."""
        raise AssertionError(_ONLY_SCHEMA)

    return (
        Tool(execute, call_tag="sql", takes_code=True),
        Tool(tables),
        Tool(describe),
        Tool(submit),
    )


_ONLY_SCHEMA = "only the schema of this tool is asked for"
