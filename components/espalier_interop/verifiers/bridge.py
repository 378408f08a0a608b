# pyright: basic, reportMissingImports=false
"""The process between a run and an EnvServer; it uses only verifiers and the standard library.

It runs in its own interpreter, whose packages are not espalier's. Its only argument is JSON:

    {"socket": PATH, "taskset": ID, "env": {...}, "address": "", "start_timeout_s": 120.0}

With an address it is a client of the server there; without one it serves the taskset itself, over
the same protocol. Once it can take runs, it listens on the socket. A connection is a run: it
receives a line of JSON and sends one back; closing the connection earlier cancels the run.

    {"task_data": {...}, "base_url": URL, "model": NAME}
    {"rewards": {NAME: NUMBER or null}}    or    {"failed": REASON}

With `{"tasks": COUNT}` in its argument instead of the socket, it prints the data of that many
tasks, one line of JSON each. It ends with its standard input. If it cannot serve, it prints the
reason as the last line of standard error and exits with status 2.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from contextlib import suppress
from typing import Any

MAX_LINE_BYTES = 16 << 20
"""Largest request of a run."""
_KEY_VARIABLE = "ESPALIER_ENV_SERVER_KEY"
"""An unset variable, so that no key of this machine is sent: an episode's address is its secret."""
CHECK_EVERY_S = 5.0
_CHECK_TIMEOUT_S = 10.0
_MOST_MISSED = 3
"""After this many checks in a row without an answer, the server counts as gone."""
_TOLD_CHARACTERS = 600


class NotServableError(Exception):
    """The taskset cannot be served as configured; the text says why."""


def environment(config: dict[str, Any]) -> Any:  # noqa: ANN401 (a class of verifiers)
    """Return the validated configuration of verifiers' environment.

    Raises:
        NotServableError: the policy would get a shell on this machine.
    """
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.utils.loaders import env_config_type, harness_class, resolve_env_config

    asked = dict(config["env"])
    asked["taskset"] = {**asked.get("taskset", {}), "id": config["taskset"]}
    for name, field in env_config_type(config["taskset"], asked.get("id", "")).model_fields.items():
        if isinstance(field.default, AgentConfig):
            # the default runtime is a service of Prime
            asked[name] = {"runtime": {"type": "subprocess"}, **asked.get(name, {})}
    found = resolve_env_config(asked)
    seats = {name: seat for name, seat in found if hasattr(seat, "runtime")}
    for name, harness in found.agent_harnesses().items():
        local = seats[name].runtime.type == "subprocess"
        if local and harness_class(harness.id).EXECUTES_CODE:
            raise NotServableError(
                f"the harness {harness.id!r} of seat {name!r} runs what the policy writes, and its "
                f"runtime is this machine; choose a harness that runs nothing (env.{name}.harness."
                f'id = "null"), or a runtime that isolates (env.{name}.runtime.type = "docker")'
            )
    return found


def print_tasks(config: dict[str, Any], out: Any) -> None:  # noqa: ANN401 (a text stream)
    """Print the data of the first tasks."""
    from verifiers.v1.utils.loaders import load_taskset

    taskset = load_taskset(environment(config).taskset)
    for task in taskset.take(config["tasks"]):
        out.write(json.dumps(task.data.model_dump(mode="json", exclude_none=True)) + "\n")
    out.flush()


class Bridge:
    """Runs tasks on a server, for whoever connects."""

    def __init__(self, client: Any, address: str) -> None:  # noqa: ANN401 (verifiers' EnvClient)
        self._client = client
        self._address = address
        self._ended = "it was cancelled"
        self.runs: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        with suppress(ConnectionError, ValueError):
            run = asyncio.create_task(self._episode(json.loads(await reader.readline())))
            left = asyncio.create_task(reader.read(1))
            self.runs.add(run)
            try:
                await asyncio.wait({run, left}, return_when=asyncio.FIRST_COMPLETED)
                if run.done():
                    writer.write(json.dumps(self.told(run)).encode() + b"\n")
                    await writer.drain()
            finally:
                self.runs.discard(run)
                run.cancel()
                left.cancel()
        writer.close()

    async def _episode(self, request: dict[str, Any]) -> Any:  # noqa: ANN401 (their WireEpisode)
        from verifiers.v1.configs.client import EvalClientConfig
        from verifiers.v1.types import SamplingConfig

        return await self._client.run(
            client=EvalClientConfig(base_url=request["base_url"], api_key_var=_KEY_VARIABLE),
            model=request["model"],
            sampling=SamplingConfig(),  # the run decides how tokens are sampled
            task_data=request["task_data"],
        )

    def told(self, run: asyncio.Task[Any]) -> dict[str, Any]:
        """Return the answer for a run that has ended."""
        if run.cancelled():
            return {"failed": self._ended}
        if (error := run.exception()) is not None:
            return {"failed": f"{type(error).__name__}: {error}"[:_TOLD_CHARACTERS]}
        return result_of(run.result())

    async def watch(self) -> None:
        """End the runs of a server that no longer answers."""
        missed = 0
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            healthy = not self.runs or await self._client.health(timeout=_CHECK_TIMEOUT_S)
            missed = 0 if healthy else missed + 1
            if missed >= _MOST_MISSED:
                self._ended = f"the EnvServer at {self._address} does not answer"
                for run in self.runs:
                    run.cancel()


def result_of(episode: Any) -> dict[str, Any]:  # noqa: ANN401 (verifiers' WireEpisode)
    """Return the weighted rewards of an episode by name, or why it has none."""
    faults = [*episode.errors, *(fault for trace in episode.traces for fault in trace.errors)]
    if not episode.ok or not all(trace.ok for trace in episode.traces):
        last = faults[-1] if faults else None
        told = f"{last.type}: {last.message}" if last else "the episode did not end well"
        return {"failed": told[:_TOLD_CHARACTERS]}
    if len(episode.traces) != 1:
        return {"failed": f"the episode has {len(episode.traces)} traces; one is trained on"}
    rewards = episode.traces[0].rewards
    return {"rewards": {name: None if one is None else one.value for name, one in rewards.items()}}


async def bridge(config: dict[str, Any]) -> None:
    """Connect to a server, or serve, until standard input ends.

    Raises:
        NotServableError: the server does not answer, or ended.
    """
    from verifiers.v1.serve.client import EnvClient
    from verifiers.v1.serve.server import EnvServer

    address = config["address"]
    until: list[asyncio.Future[Any]] = [_end_of_input()]
    if not address:
        server = EnvServer(environment(config), address=f"ipc://{config['socket']}.server")
        address = server.address
        until.append(asyncio.create_task(server.run()))
    client = EnvClient(address)
    try:
        await client.wait_for_server_startup(timeout=config["start_timeout_s"])
    except TimeoutError as error:
        raise NotServableError(
            f"no EnvServer of verifiers answers at {address} within "
            f"{config['start_timeout_s']:g} s; start one there, or leave agent.verifiers.address "
            "empty to have one started"
        ) from error
    between = Bridge(client, address)
    if config["address"]:
        until.append(asyncio.create_task(between.watch()))
    beside = config["socket"] + ".new"
    await asyncio.start_unix_server(between.serve, beside, limit=MAX_LINE_BYTES)
    os.rename(
        beside, config["socket"]
    )  # renamed when ready, so that the socket's existence means it accepts
    ended, _ = await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
    for one in ended:
        one.result()


def _end_of_input() -> asyncio.Future[None]:
    """Return a future that is done once standard input ends, with the parent process."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def read() -> None:
        sys.stdin.buffer.read()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(done.set_result, None)

    threading.Thread(target=read, daemon=True).start()
    return done


def main() -> None:
    """Serve, or print tasks, as the argument says; output of tasksets goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.excepthook = _say_and_end
    config = json.loads(sys.argv[1])
    if "tasks" in config:
        print_tasks(config, out)
    else:
        asyncio.run(bridge(config))
    os._exit(0)  # do not join threads that still wait for a server


def _say_and_end(kind: type[BaseException], error: BaseException, _trace: object) -> None:
    said = str(error) if kind is NotServableError else f"{kind.__name__}: {error}"
    if kind is not NotServableError and error.__cause__ is not None:
        said += f" (because of {type(error.__cause__).__name__}: {error.__cause__})"
    sys.stderr.write(" ".join(said.split())[-_TOLD_CHARACTERS:] + "\n")
    sys.stderr.flush()
    os._exit(2)


if __name__ == "__main__":
    main()
