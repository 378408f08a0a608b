"""Attempts that an EnvServer of `verifiers` plays and scores, in a process with its own packages.

That process runs `verifiers.bridge`. One process serves all concurrent attempts of
this one; each attempt is a connection, so that closing it ends the attempt's run.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, cast

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from espalier.config import AgentConfig
from espalier.records import DataError, ProfileError, Task
from espalier.records.message import JsonObject
from espalier_interop.agents.process import AgentExit
from espalier_interop.verifiers.process import (
    MAX_LINE_BYTES,
    bridge_command,
    bridge_variables,
    last_line,
)

_POLL_S = 0.05
_TOLD_BYTES = 2000
_END_WITHIN_S = 5.0
_START_SLACK_S = 60.0
"""Time to import verifiers, in addition to the start timeout of its server."""


class _Answer(BaseModel):
    """The server's report of one run."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    rewards: dict[str, float | None] | None = None
    failed: str | None = None


class EnvServerRuns:
    """Plays attempts on one server, from the first attempt until `end` ends its process."""

    def __init__(self, config: AgentConfig) -> None:
        assert config.verifiers is not None, "only a profile that names a server is played on one"
        self._config = config
        self._server = config.verifiers
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self._said: IO[bytes] | None = None

    async def play(self, task: Task, variables: Mapping[str, str]) -> AgentExit:
        """Play one attempt, until the server has scored it or its time is over.

        Args:
            task: the task; `arguments["task_data"]` is its TaskData of verifiers.
            variables: address of the policy, and name of the attempt.

        Raises:
            ProfileError: the taskset cannot be served, or no server answers.
        """
        request: JsonObject = {
            "task_data": task_data(task),
            "base_url": variables["OPENAI_BASE_URL"],
            "model": variables["ESPALIER_MODEL"],
        }
        line = json.dumps(request).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"task {task.task_id} has {len(line)} bytes of data; that is too much")
        await self.start()
        try:
            async with asyncio.timeout(self._config.deadline_s):
                return read_answer(await self._exchange(line))
        except TimeoutError:
            return AgentExit(None, "")
        except (OSError, ValueError) as error:  # a connection that broke, a line without an end
            return AgentExit(1, f"the process of verifiers was lost: {error}")

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin is not None, "it is started with a pipe"
            self._process.stdin.close()  # a closed input ends the process and its server
            try:
                self._process.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _exchange(self, line: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=MAX_LINE_BYTES)
        try:
            writer.write(line)
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()

    @property
    def _socket(self) -> str:
        return f"{self._folder}/runs"

    async def start(self) -> None:
        """Start the process unless it runs, and wait until it accepts runs.

        Raises:
            ProfileError: the taskset cannot be served, or no server answers.
        """
        if self._process is not None and self._process.poll() is None and self._takes_runs():
            return
        if self._process is None or self._process.poll() is not None:
            self._start()
        try:
            async with asyncio.timeout(self._server.start_timeout_s + _START_SLACK_S):
                while not self._takes_runs():
                    if self._process is None or self._process.poll() is not None:
                        raise ProfileError(
                            f"agent.verifiers: {self._server.taskset!r} cannot be played: "
                            f"{self._last_words()}"
                        )
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            self.end()
            raise ProfileError(
                f"agent.verifiers: {self._server.python} took no run of {self._server.taskset!r} "
                f"within {self._server.start_timeout_s:g} s ({self._last_words()}); raise "
                "agent.verifiers.start_timeout_s"
            ) from error

    def _takes_runs(self) -> bool:
        return Path(self._socket).exists()

    def _start(self) -> None:
        self.end()
        self._folder = tempfile.mkdtemp(prefix="espalier-env-")
        self._said = cast("IO[bytes]", tempfile.TemporaryFile())  # noqa: SIM115 (of the process)
        asked: JsonObject = {
            "socket": self._socket,
            "address": self._server.address,
            "start_timeout_s": self._server.start_timeout_s,
        }
        command = bridge_command(self._config, asked)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=bridge_variables(self._config),
                start_new_session=True,  # an interrupt (Ctrl-C) of this run must not reach it
            )
        except OSError as error:
            raise ProfileError(
                f"agent.verifiers.python = {self._server.python}: cannot be started ({error})"
            ) from error

    def _last_words(self) -> str:
        if self._said is None:
            return "it said nothing"
        self._said.seek(max(0, self._said.seek(0, 2) - _TOLD_BYTES))
        return last_line(self._said.read())


def task_data(task: Task) -> JsonValue:
    """Return the TaskData of a task: its own, or one made of its prompt."""
    if (found := task.arguments.get("task_data")) is not None:
        return found
    messages = task.prompt
    if len(messages) == 1 and messages[0].role == "user":
        return {"prompt": messages[0].content}
    return {"prompt": [{"role": one.role, "content": one.content} for one in messages]}


def read_answer(line: bytes) -> AgentExit:
    """Return how an attempt ended, with the sum of its rewards."""
    if not line:
        return AgentExit(1, "the process of verifiers ended during the run")
    try:
        answer = _Answer.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return AgentExit(1, f"the run ended with what is no result: {first['msg']}")
    if answer.rewards is None:
        return AgentExit(1, f"the run failed: {answer.failed or 'it says no result'}")
    given = [value for value in answer.rewards.values() if value is not None]
    if not given or len(given) < len(answer.rewards) or not math.isfinite(sum(given)):
        return AgentExit(0, "", None)
    return AgentExit(0, "", {"outcome": sum(given)})


@lru_cache(maxsize=2)
def _shared_runs(config: str) -> EnvServerRuns:
    runs = EnvServerRuns(AgentConfig.model_validate_json(config))
    atexit.register(runs.end)
    return runs


def env_server_runs(config: AgentConfig) -> EnvServerRuns:
    """Return the runs of a server; all rollouts of this process share its process."""
    return _shared_runs(config.model_dump_json())
