"""The family of tasks that are played on an OpenEnv server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from espalier.config import EnvironmentConfig
from espalier.environments.contract import EnvironmentsOver
from espalier.environments.episode import EpisodeRules
from espalier.environments.family import SimpleFamily, make_task
from espalier.environments.server_sandbox import packed_files
from espalier.environments.teaching import Script
from espalier.environments.tools import DescribedTool, Tool, ToolOutput
from espalier.records import (
    DataError,
    FinalAnswer,
    JsonObject,
    Message,
    Split,
    Task,
    ToolCall,
    ToolCalls,
)
from espalier.records.message import ToolSpec
from espalier.records.task import read_json_values
from espalier.sandbox.choice import sandbox_pool
from espalier_interop.openenv.config import OpenEnvConfig
from espalier_interop.openenv.episode import RemoteEpisode
from espalier_interop.openenv.remote_tools import (
    listed_tools,
    read_prompt,
    schema_tool,
    text_argument,
)
from espalier_interop.openenv.sandboxed import SandboxedLine
from espalier_interop.openenv.session import Line, RemoteSession, Server, SocketLine

KEY_VARIABLE = "OPENENV_API_KEY"
"""Environment variable whose value is sent to the server as a bearer token."""
_FIRST_SEED: Mapping[Split, int] = {"train": 0, "dev": 1_000_000, "heldout": 2_000_000}
_THEIR_SPLITS: Mapping[Split, str] = {"train": "train", "dev": "validation", "heldout": "test"}
"""Our splits -> names in OpenEnv's task interface; a reset without a split argument ignores
them."""
_SPARE = 2
"""Seeds that are tried per requested task: seeds with the same prompt as another split are
dropped."""


_MIB = 2**20
_Lines = Callable[[], Line]
"""Creates an unopened connection to a server for one session."""


class _Action(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str | None = None
    arguments: dict[str, Any] = {}
    answer: str | None = None


class _Demonstration(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(ge=0)
    actions: tuple[_Action, ...] = Field(min_length=1)


class OpenEnv(SimpleFamily[OpenEnvConfig]):
    """Seeds of a server as tasks, its rewards as outcomes; a seed always begins one episode."""

    name = "openenv"
    config: ClassVar[type[EnvironmentConfig]] = OpenEnvConfig
    converses = True
    ends_by_call = True
    answers_from_evidence = False

    @classmethod
    def outcome_span(cls, settings: EnvironmentConfig) -> tuple[float, float]:
        """Return the range configured in the profile."""
        return cast("OpenEnvConfig", settings).rewards

    # ------------------------------------------------------------------------------ the server

    @property
    def _server(self) -> Server:
        key = os.environ.get(KEY_VARIABLE) or None
        return Server(self.settings.url, self.settings.timeout_s, key)

    @contextmanager
    def _hosting(self) -> Generator[_Lines]:
        """Open access to sessions; servers in sandboxes end with the context."""
        program = self.settings.server
        if program is None:
            yield lambda: SocketLine(self._server)
            return
        packed = packed_files(program.files) if program.files else b""
        disk_bytes = self.settings.disk_mb * _MIB
        pool = sandbox_pool(self.settings.sandbox, self.profile.kubernetes, disk_bytes=disk_bytes)
        with pool as sandboxes:
            yield lambda: SandboxedLine(sandboxes, program, packed)

    def _session(self, lines: _Lines) -> RemoteSession:
        return RemoteSession(self.settings.where, lines(), self.settings.timeout_s)

    @cached_property
    def _specs(self) -> tuple[ToolSpec, ...]:
        with self._hosting() as lines:
            return asyncio.run(self._asked_specs(lines))

    async def _asked_specs(self, lines: _Lines) -> tuple[ToolSpec, ...]:
        where = self.settings.where
        if self.settings.actions == "schema":
            return schema_tool(where, await self._schema(lines))
        async with self._session(lines) as session:
            listed = await session.list_tools(self._reset_data("train", 0))
        return listed_tools(where, listed)

    async def _schema(self, lines: _Lines) -> object:
        line = lines()
        if not isinstance(line, SandboxedLine):
            return await self._server.schema()
        await line.open()
        told = await line.get("/schema", self.settings.timeout_s)
        await line.close()
        try:
            return json.loads(told)
        except ValueError as error:
            raise DataError(f"{self.settings.where}: /schema is not JSON ({error})") from error

    def _reset_data(self, split: Split, seed: int) -> dict[str, Any]:
        return {"split": _THEIR_SPLITS[split], **self.settings.reset, "seed": seed}

    # ------------------------------------------------------------------------------ tasks

    def tools(self) -> Sequence[Tool]:
        """Return the server's tools except the answering tool, which receives messages instead."""
        offered = (spec for spec in self._specs if spec.name != self._answering)
        return tuple(DescribedTool(spec, _not_played) for spec in offered)

    @property
    def _answering(self) -> str | None:
        name = self.settings.answer_tool
        return name if text_argument(self._specs, name) is not None else None

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return up to `count` seeds whose prompts no other split has; held-out comes first."""
        return self._dealt[split][:count]

    @cached_property
    def _dealt(self) -> dict[Split, list[Task]]:
        with self._hosting() as lines:
            return asyncio.run(self._read(lines))

    async def _read(self, lines: _Lines) -> dict[Split, list[Task]]:
        asked = self.profile.synthesis
        wanted: dict[Split, int] = {
            "heldout": asked.heldout_tasks, "dev": asked.dev_tasks, "train": asked.train_tasks,
        }  # fmt: skip
        taken: set[tuple[Message, ...]] = set()
        found: dict[Split, list[Task]] = {}
        for split, count in wanted.items():
            of_split: list[Task] = []
            found[split] = of_split
            seed, last = _FIRST_SEED[split], _FIRST_SEED[split] + _SPARE * count
            while len(of_split) < count and seed < last:
                seeds = range(seed, min(last, seed + count - len(of_split)))
                for at, prompt in zip(seeds, await self._prompts(lines, split, seeds), strict=True):
                    if prompt not in taken:
                        taken.add(prompt)
                        of_split.append(self._task(split, at, prompt))
                seed = seeds.stop
        return found

    async def _prompts(
        self, lines: _Lines, split: Split, seeds: Sequence[int]
    ) -> list[tuple[Message, ...]]:
        """Return the prompt of each seed, read over several concurrent sessions."""
        found: dict[int, tuple[Message, ...]] = {}
        waiting = iter(seeds)
        num_readers = min(self.settings.sessions, len(seeds))
        if self.settings.server is not None:  # there are not more sandboxes
            num_readers = min(num_readers, self.settings.sandbox.size)

        async def read() -> None:
            async with self._session(lines) as session:
                for seed in waiting:
                    told = await session.reset(self._reset_data(split, seed))
                    where = f"{self.settings.where}, seed {seed}"
                    found[seed] = read_prompt(told.observation, self.settings.prompt, where)

        try:
            async with asyncio.TaskGroup() as readers:
                for _ in range(num_readers):
                    readers.create_task(read())
        except ExceptionGroup as faults:  # one of the errors says enough
            raise faults.exceptions[0] from faults
        return [found[seed] for seed in seeds]

    def _task(self, split: Split, seed: int, prompt: tuple[Message, ...]) -> Task:
        said = json.dumps([message.content for message in prompt])
        return make_task(
            self.name,
            prompt,
            gold=(f"seed {seed}",),
            split=split,
            source=self.settings.where,
            key=said,
            kind="server",  # only the server knows the right answer
            arguments={"seed": seed},
            metadata={"extra": {"query": said}},
        )

    # ------------------------------------------------------------------------------ playing

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open environments whose episodes have their own sessions."""
        del knowledge
        specs, answering = self._specs, self._answering
        offered = [spec for spec in specs if spec.name != answering]
        with self._hosting() as lines:
            found = self.environments_by(
                self.tools(), lambda task: self._rules_of(task, offered, answering, lines)
            )
            yield lambda _view: found

    def _rules_of(
        self, task: Task, offered: Sequence[ToolSpec], answering: str | None, lines: _Lines
    ) -> EpisodeRules:
        seed, split = cast("int", task.arguments["seed"]), task.metadata.split
        episode = RemoteEpisode(self._session(lines), self.settings, self._reset_data(split, seed))
        rules = self.rules([DescribedTool(spec, episode.playing(spec.name)) for spec in offered])
        argument = text_argument(self._specs, answering) if answering else None
        said = None
        if answering is not None and argument is not None:
            said = episode.speaking(answering, argument)
        return replace(
            rules,
            verify=episode.outcome,
            reply=said,
            is_over=lambda: episode.is_over,
            on_end=episode.end,
        )

    def verify(self, task: Task, answer: str | None) -> float:
        """Refuse: only the server can judge, and only whole episodes.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"task {task.task_id}: the answer {answer!r} is not judged here; {self.settings.where} "
            "rewards the episode in which it is given"
        )

    # ------------------------------------------------------------------------------ teaching

    def demonstrate(self, task: Task) -> Script:
        """Yield the actions in the demonstrations file for the task's seed."""
        for action in self._shown.get(cast("int", task.arguments["seed"]), ()):
            if action.answer is not None:
                yield FinalAnswer(action.answer)
            else:
                call = ToolCall(name=action.tool or "", arguments=action.arguments)
                yield ToolCalls((call,))

    @cached_property
    def _shown(self) -> dict[int, tuple[_Action, ...]]:
        path = self.settings.demonstrations
        if path is None:
            raise DataError(
                "environment.demonstrations is unset, so nothing shows how the tasks of "
                f"{self.settings.where} are solved. Name a file of JSON lines "
                '{"seed": 0, "actions": [{"tool": ..., "arguments": {...}}, {"answer": ...}]}, or '
                "derive a family from espalier_interop.openenv.OpenEnv with a `demonstrate`"
            )
        found: dict[int, tuple[_Action, ...]] = {}
        for number, value in read_json_values(path):
            try:
                row = _Demonstration.model_validate(value)
            except ValidationError as error:
                first = error.errors(include_input=False, include_url=False)[0]
                key = ".".join(str(part) for part in first["loc"])
                raise DataError(f"{path}, line {number}: {key}: {first['msg']}") from error
            found[row.seed] = row.actions
        return found


async def _not_played(arguments: JsonObject) -> ToolOutput:
    raise AssertionError(f"called with {arguments} outside of an episode")
