"""The process of an agent: started with a filtered environment, ended at its deadline.

By default a process plays one attempt, whose variables are in its environment. With
`agent.tasks_per_process` above 1 it reads them from its standard input, one line of JSON per
attempt, and writes a line of JSON with that `attempt` and its `status` when it has ended. Other
lines are output of the program, whatever they look like: a policy's text may stand in them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from espalier.config import AgentConfig
from espalier.records import ProfileError

_KEPT = ("HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
"""Environment variables that an agent inherits; our keys and addresses are not among them."""
_TOLD_BYTES = 2000
"""Size of the end of a program's output that an error message shows."""
_PIECE_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 20
_READ_ON_S = 1.0
"""Time to read the rest of the output after all processes of the agent were ended."""
ATTEMPT = "ESPALIER_ATTEMPT"
"""Variable with the id of an attempt, which the line that ends it repeats. No policy knows it."""
_MAX_VARIABLE_BYTES = 120_000
"""Linux accepts at most 128 KiB in one environment variable."""


class AgentExit(NamedTuple):
    """How one attempt of a program ended."""

    status: int | None
    """Exit status; None if the program was ended at its deadline."""
    told: str
    """The end of the program's output."""
    terms: Mapping[str, float] | None = None
    """The attempt's reward, where the program does not post it itself."""


class _Output(NamedTuple):
    reader: asyncio.StreamReader
    pipe: asyncio.ReadTransport


class _Program:
    """A process that plays attempts one after the other."""

    def __init__(self, process: asyncio.subprocess.Process, output: _Output) -> None:
        self.process = process
        self._output = output
        self.attempts = 0
        self.told = bytearray()
        """The end of the program's output."""
        self._attempt = ""
        self._statuses: asyncio.Queue[int] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    def begin(self, variables: Mapping[str, str]) -> None:
        """Begin the attempt that the variables name."""
        self.attempts += 1
        self.told.clear()
        self._attempt, self._statuses = variables.get(ATTEMPT, ""), asyncio.Queue()

    async def until_over(self) -> int:
        """Wait until the program reports how the attempt ended, or exits.

        The outputs may stay open after its exit: a child process that it left behind holds them
        too.
        """
        told = asyncio.create_task(self._statuses.get())
        ended = asyncio.create_task(self.process.wait())
        try:
            await asyncio.wait({told, ended}, return_when=asyncio.FIRST_COMPLETED)
            return told.result() if told.done() else ended.result()
        finally:
            told.cancel()
            ended.cancel()

    async def end(self) -> None:
        """End the program and its child processes, then read the rest of its output."""
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        await asyncio.wait({self._reading}, timeout=_READ_ON_S)
        self._reading.cancel()
        self._output.pipe.close()

    async def _read(self) -> None:
        unread = b""
        while piece := await self._output.reader.read(_PIECE_BYTES):
            self.told = (self.told + piece)[-_TOLD_BYTES:]
            *lines, unread = (unread + piece)[-_MAX_LINE_BYTES:].split(b"\n")
            for line in lines:
                if (status := _status(line, self._attempt)) is not None:
                    self._statuses.put_nowait(status)


def _status(line: bytes, attempt: str) -> int | None:
    """Return the status of an attempt in a line of output; None if the line is other output."""
    if not line.startswith(b"{"):
        return None
    try:
        told: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match told:
        case {"attempt": str(ended), "status": int(status)} if ended == attempt:
            return status
        case _:
            return None


class AgentPrograms:
    """The processes of one agent, including those that wait for an attempt."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._idle: list[_Program] = []

    async def play(self, variables: Mapping[str, str]) -> AgentExit:
        """Play one attempt, until the program reports its end or its time is over.

        Args:
            variables: environment variables of the attempt.

        Raises:
            ProfileError: the program cannot be started, or a variable is too long for it.
        """
        keeps = self._config.tasks_per_process > 1
        program = self._idle.pop() if self._idle else await self._started(variables)
        program.begin(variables)
        status: int | None = None
        try:
            async with asyncio.timeout(self._config.deadline_s):
                if keeps:
                    assert program.process.stdin is not None, "its input is a pipe"
                    program.process.stdin.write(json.dumps(dict(variables)).encode() + b"\n")
                status = await program.until_over()
        except TimeoutError:
            status = None  # the exit status reports this
        finally:
            goes_on = keeps and status is not None and program.process.returncode is None
            if goes_on and program.attempts < self._config.tasks_per_process:
                self._idle.append(program)
            else:
                await program.end()
        return AgentExit(status, program.told.decode(errors="replace").strip())

    async def close(self) -> None:
        """End the processes that wait for an attempt."""
        while self._idle:
            await self._idle.pop().end()

    async def _started(self, variables: Mapping[str, str]) -> _Program:
        config = self._config
        keeps = config.tasks_per_process > 1
        # our own pipe: asyncio reports no exit while a child process holds its pipe open
        output, written = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *config.command,
                stdin=asyncio.subprocess.PIPE if keeps else asyncio.subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env=_environment(config, {} if keeps else variables),
                start_new_session=True,  # its own process group ends its children, too
            )
        except (OSError, ValueError) as error:
            os.close(output)
            raise ProfileError(
                f"agent.command = {list(config.command)} cannot be started: {error}"
            ) from error
        finally:
            os.close(written)
        reader = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb")
        )
        return _Program(process, _Output(reader, pipe))


@asynccontextmanager
async def agent_programs(config: AgentConfig) -> AsyncGenerator[AgentPrograms]:
    """Yield the processes of an agent, which are ended with the block."""
    programs = AgentPrograms(config)
    try:
        yield programs
    finally:
        await programs.close()


def _environment(config: AgentConfig, attempt: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a program.

    Raises:
        ProfileError: a variable is longer than Linux accepts.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # "python" is the one that espalier runs with
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    variables = {**kept, "PATH": path, **config.variables, **attempt}
    for name, value in variables.items():
        if (size := len(value.encode())) > _MAX_VARIABLE_BYTES:
            raise ProfileError(
                f"{name} has {size} bytes, and an environment takes {_MAX_VARIABLE_BYTES} in one "
                "variable; set agent.tasks_per_process above 1, and read tasks from the input"
            )
    return variables
