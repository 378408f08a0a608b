"""The family of tasks that are solved with the tools of MCP servers.

    question   "Note that the parcel for Oslo weighs 7 kg."
    call       notes_add {"text": "Oslo: 7 kg"}        ->  added note 1
    answer     "done"                                  checks: notes_list {} is "1: Oslo: 7 kg"

A task has a gold answer, or checks: calls that are made after the policy has answered, whose
results show whether the task was done.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from espalier.config import EnvironmentConfig
from espalier.environments.benchmarks import read_rows
from espalier.environments.contract import EnvironmentLostError, EnvironmentsOver
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.family import SimpleFamily, dealt_split, make_task
from espalier.environments.mixins import HasBenchmarks
from espalier.environments.server_sandbox import packed_files
from espalier.environments.teaching import Script
from espalier.environments.tools import DescribedTool, Tool, ToolError, ToolOutput
from espalier.records import (
    DataError,
    FinalAnswer,
    JsonObject,
    Split,
    Task,
    ToolCall,
    ToolCalls,
)
from espalier.records.message import ToolSpec
from espalier.rewards.answers import exact_match
from espalier.sandbox.choice import PoolThread, sandbox_pool
from espalier_interop.mcp.config import McpConfig
from espalier_interop.mcp.session import McpSession
from espalier_interop.mcp.transports import (
    HttpTransport,
    ProgramTransport,
    SandboxedPrograms,
    SessionEndings,
    Transport,
    environment_variables,
)

INSTRUCTIONS = (
    "Use the tools as often as you need to. When the task is done, or the question can be "
    "answered, write the answer alone, without a call.\n"
)
_MIB = 1 << 20
DONE = "done"
"""What a teacher says at the end of a task without a gold answer."""


class _Call(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    arguments: dict[str, Any] = {}


class _Check(_Call):
    result: str


class _Row(BaseModel):
    """A line of the file of tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str = Field(min_length=1)
    answer: str | list[str] | None = None
    checks: list[_Check] = []
    actions: list[_Call] | None = None
    kind: str = ""

    @model_validator(mode="after")
    def _something_tells_right_from_wrong(self) -> _Row:
        if not self.gold and not self.checks:
            raise ValueError("a task has an answer, or checks, or both")
        return self

    @property
    def gold(self) -> list[str]:
        answer = self.answer
        return answer if isinstance(answer, list) else [] if answer is None else [answer]


class Server(NamedTuple):
    """A server's tools, under the names by which a policy calls them."""

    name: str
    tools: Mapping[str, ToolSpec]


class Mcp(SimpleFamily[McpConfig], HasBenchmarks):
    """The family of tasks for MCP servers; a derived class may generate and demonstrate tasks."""

    name = "mcp"
    config: ClassVar[type[EnvironmentConfig]] = McpConfig
    instructions = INSTRUCTIONS
    answers_from_evidence = False

    # ------------------------------------------------------------------------------ tools

    def tools(self) -> Sequence[Tool]:
        """Return the tools of every server; each server is asked for them once."""
        return [
            DescribedTool(replace(spec, name=name), _not_played)
            for server in self._servers
            for name, spec in server.tools.items()
        ]

    @cached_property
    def _servers(self) -> list[Server]:
        """The servers with their tools.

        Raises:
            DataError: a server does not start, does not speak MCP, or lists no tools.
        """
        if not self.settings.servers:
            raise DataError(
                "environment.servers is empty, so there are no tools. Name a server: "
                '[environment.servers.notes] command = ["python3", "server.py"]'
            )
        with self._hosting() as hosting:
            return asyncio.run(self._asked(hosting))

    async def _asked(self, hosting: _Hosting) -> list[Server]:
        episode = _Episode(self.settings, hosting)
        found: list[Server] = []
        try:
            for name, session in episode.sessions.items():
                prefix = self.settings.servers[name].prefix
                listed = await session.list_tools()
                found.append(Server(name, {prefix + spec.name: spec for spec in listed}))
        except EnvironmentLostError as error:
            raise DataError(f"environment.servers: {error}") from error
        finally:
            episode.end()
        self._refuse_equal_names(found)
        return found

    @staticmethod
    def _refuse_equal_names(servers: Sequence[Server]) -> None:
        owner: dict[str, str] = {}
        for server in servers:
            for tool in server.tools:
                if (other := owner.setdefault(tool, server.name)) != server.name:
                    raise DataError(
                        f"the servers {other} and {server.name} both have a tool {tool}; set "
                        f'environment.servers.{server.name}.prefix = "{server.name}_"'
                    )

    @contextmanager
    def _hosting(self) -> Generator[_Hosting]:
        """Open access to the servers; those in sandboxes end with the context."""
        programs = self.settings.programs
        packed = {name: packed_files(one.files) for name, one in programs.items() if one.files}
        with ExitStack() as opened:
            endings = SessionEndings()
            opened.callback(endings.close)
            sandboxes = None
            if programs:
                disk_bytes = self.settings.disk_mb * _MIB
                pool = sandbox_pool(
                    self.settings.sandbox, self.profile.kubernetes, disk_bytes=disk_bytes
                )
                sandboxes = opened.enter_context(pool)
            yield _Hosting(sandboxes, packed, endings)

    # ------------------------------------------------------------------------------ tasks

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return up to `count` tasks of the file whose questions are assigned to the split."""
        return [task for task in self._all if task.metadata.split == split][:count]

    @cached_property
    def _all(self) -> list[Task]:
        path = self.settings.tasks
        if path is None:
            raise DataError(
                "environment.tasks is unset, so there are no tasks. Name a file of JSON lines "
                '{"question": ..., "answer": ..., "actions": [{"tool": ..., "arguments": {...}}]}'
                ", or derive a family from espalier_interop.mcp.Mcp with a `tasks`"
            )
        return self._tasks_of(path, lambda question: dealt_split(question, self.profile.splits))

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return the tasks of another file, all held out."""
        return self._tasks_of(path, lambda _question: "heldout")

    def _tasks_of(self, path: Path, split_of: Callable[[str], Split]) -> list[Task]:
        found: dict[str, Task] = {}
        for where, row in read_rows(path, _Row):
            task = make_task(
                self.name,
                row.question,
                gold=row.gold or (DONE,),
                split=split_of(row.question),
                source=path.name,
                key=row.question,
                kind="exact_match" if row.gold else "checks",
                arguments={"checks": [check.model_dump() for check in row.checks]},
                metadata={
                    "extra": {
                        "kind": row.kind,
                        "query": row.question,
                        "actions": None
                        if row.actions is None
                        else [action.model_dump() for action in row.actions],
                    }
                },
            )
            if found.setdefault(row.question, task) is not task:
                raise DataError(f"{where}: its question is in an earlier row")
        return list(found.values())

    # ------------------------------------------------------------------------------ playing

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open environments whose episodes have their own servers, or sessions on servers."""
        del knowledge
        tools = self.tools()
        with self._hosting() as hosting:
            found = self.environments_by(tools, lambda task: self._rules_of(task, hosting))
            yield lambda _view: found

    def _rules_of(self, task: Task, hosting: _Hosting) -> EpisodeRules:
        episode = _Episode(self.settings, hosting)
        tools = [
            DescribedTool(replace(spec, name=name), episode.playing(server.name, spec.name))
            for server in self._servers
            for name, spec in server.tools.items()
        ]
        played = {tool.spec.name: tool for tool in tools}
        passed = _Checks(cast("list[JsonObject]", task.arguments.get("checks", [])), played)

        def judged(of: Task, answer: str | None, _turns: TurnResults) -> float:
            return passed.share_of_right * self.verify(of, answer)

        return replace(
            self.rules(tools),
            verify=judged,
            # the checks run when the policy answers: at the end of the episode the servers end too
            reply=partial(passed.ask, task),
            on_end=episode.end,
        )

    def verify(self, task: Task, answer: str | None) -> float:
        """Return 1 for the gold answer, or for any answer without one; episodes run the checks."""
        if answer is None:
            return 0.0
        if task.verifier.kind == "checks":
            return 1.0
        return float(exact_match(answer, task.verifier.gold))

    # ------------------------------------------------------------------------------ teaching

    def demonstrate(self, task: Task) -> Script:
        """Yield the actions in the task's line, then its answer.

        Raises:
            DataError: the line has no actions.
        """
        actions = task.extra.get("actions")
        if not isinstance(actions, list):
            raise DataError(
                f"task {task.task_id} ({task.question[:60]!r}) has no `actions`, so nothing shows "
                "how it is solved. Add them to its line, or derive a family from "
                "espalier_interop.mcp.Mcp with a `demonstrate`"
            )
        for action in cast("list[dict[str, Any]]", actions):
            yield ToolCalls((ToolCall(name=action["tool"], arguments=action["arguments"]),))
        yield FinalAnswer(task.verifier.gold[0])

    def has_text_answer(self, task: Task) -> bool:
        """Return whether its line has an answer; otherwise checks score the servers."""
        return task.verifier.kind == "exact_match"

    def gold_script(self, task: Task) -> Script:
        """Yield the demonstration if there is one, since checks depend on the actions."""
        if task.extra.get("actions") is None:
            yield FinalAnswer(task.verifier.gold[0])
        else:
            yield from self.demonstrate(task)


class _Hosting(NamedTuple):
    """The resources by which episodes reach servers."""

    sandboxes: PoolThread | None
    packed: Mapping[str, bytes]
    endings: SessionEndings


class _Episode:
    """The sessions of one episode, each begun when its first tool is called."""

    def __init__(self, config: McpConfig, hosting: _Hosting) -> None:
        programs = None
        if hosting.sandboxes is not None:
            programs = SandboxedPrograms(hosting.sandboxes, config, hosting.packed)
        self._transports: list[Transport] = []
        self.sessions: dict[str, McpSession] = {}
        for name, server in config.servers.items():
            transport: Transport
            if server.url:
                transport = HttpTransport(server, environment_variables(), hosting.endings)
            else:
                assert programs is not None, "programs have sandboxes"
                transport = ProgramTransport(programs, name)
            self._transports.append(transport)
            self.sessions[name] = McpSession(name, transport, config)

    def playing(self, server: str, tool: str) -> Callable[[JsonObject], Awaitable[ToolOutput]]:
        """Return the function that plays calls of that tool."""

        async def play(arguments: JsonObject) -> ToolOutput:
            return await self.sessions[server].call(tool, arguments)

        return play

    def end(self) -> None:
        """End all sessions."""
        for transport in self._transports:
            transport.end()


class _Checks:
    """Calls whose results show whether a task was done."""

    def __init__(self, checks: Sequence[JsonObject], tools: Mapping[str, DescribedTool]) -> None:
        self._checks = checks
        self._tools = tools
        self._right: bool | None = None if checks else True

    @property
    def share_of_right(self) -> float:
        """1 if every check gave its expected result; 0 if one did not, or none was made."""
        return float(self._right is True)

    async def ask(self, of: Task, _said: str) -> None:
        """Make the calls, once the policy has answered.

        Raises:
            DataError: a check names an unknown tool.
        """
        if not self._checks:
            return
        self._right = True
        for check in self._checks:
            name = str(check["tool"])
            if name not in self._tools:
                raise DataError(
                    f"task {of.task_id}: a check calls {name}; there are {', '.join(self._tools)}"
                )
            call = ToolCall(name=name, arguments=cast("JsonObject", check["arguments"]))
            played = self._tools[name].call(call, of)
            assert isinstance(played, Awaitable), "tools of servers are waited for"
            result = await played
            self._right = self._right and result.content.strip() == str(check["result"]).strip()


async def _not_played(arguments: JsonObject) -> ToolOutput:
    raise ToolError(f"called with {json.dumps(arguments)[:200]} outside of an episode")
