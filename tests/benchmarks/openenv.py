"""How many sessions an OpenEnv server of ours holds, and whether cut connections cost it places.

    python -m tests.benchmarks.openenv
    python -m tests.benchmarks.openenv --sessions 1024 --seconds 60 --cuts 2000

The server serves conversations of customer service in a process of its own; the clients are in this
one, on the same machine. Each session takes a step every --every seconds, at a moment of its own.
Then --cuts connections are cut: before the upgrade, after it, in the middle of a message, during an
answer, and by a reset instead of an end. At last all sessions are taken by clients that fall silent
and answer no ping, as those of a machine that lost its power. After each, all sessions must be free
again. The reference is OpenEnv's own table of August 2026: 2,048 sessions on 8 cores, p99 1.97 s,
96.5 % of the sessions well. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

_START_WITHIN_S = 60.0
_RESET = struct.pack("ii", 1, 0)
_HELD_AT_ONCE = 64


def main() -> None:
    """Measure, and print."""
    options = _options()
    if options.serve:
        _serve(options)
        return
    with server(options.sessions) as (port, process):
        steps = asyncio.run(step_for(port, options))
        steps["server_mib"] = _resident_mib(process.pid)
        print(
            f"{options.sessions} sessions, a step each every {options.every:g} s for "
            f"{options.seconds:g} s: {steps['answered']} of {steps['steps']} answered, "
            f"p50 {1000 * steps['p50_s']:.1f} ms, p99 {1000 * steps['p99_s']:.1f} ms, "
            f"server {steps['server_mib']:.0f} MiB"
        )
        cuts = asyncio.run(cut_many(port, options))
        print(
            f"{cuts['cuts']} connections cut in {cuts['seconds']:.0f} s: "
            f"{cuts['free']} of {options.sessions} sessions free afterwards, after "
            f"{cuts['free_after_s']:.0f} s"
        )
        silent = asyncio.run(fall_silent(port, options))
        print(
            f"{options.sessions} silent clients: {silent['free_of_silent']} sessions free after "
            f"{silent['silent_s']:.0f} s"
        )
    print(
        json.dumps(
            {"benchmark": "openenv", "sessions": options.sessions, **steps, **cuts, **silent}
        )
    )
    freed = min(cuts["free"], silent["free_of_silent"])
    if steps["answered"] < steps["steps"] or freed < options.sessions:
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=512)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two steps")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cuts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> None:
    from espalier.steps.profiles import named_profile
    from espalier_interop.openenv_serving.server import EnvironmentServing, serve_environment

    settings = [
        f"serving.environments.max_sessions={options.sessions}",
        f"serving.max_connections={options.sessions + 512}",
    ]
    profile = named_profile("customer_service", settings)
    serve_environment(EnvironmentServing(port=options.serve), profile, lambda line: None)


@contextmanager
def server(sessions: int) -> Generator[tuple[int, subprocess.Popen[bytes]]]:
    """A server in a process of its own, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.benchmarks.openenv", "--serve", str(port)]
    process = subprocess.Popen([*command, "--sessions", str(sessions)])
    try:
        _wait_for(port)
        yield port, process
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int) -> None:
    until = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"no server listens on port {port} after {_START_WITHIN_S:g} s")


async def step_for(port: int, options: argparse.Namespace) -> dict[str, float]:
    """All sessions step at their own moments, for so many seconds."""
    from espalier_interop.openenv.session import Server, session_on

    times: list[float] = []
    asked = 0
    ends = time.monotonic() + options.seconds
    generator = random.Random(options.seed)
    action = {"type": "call_tool", "tool_name": "calculate", "arguments": {"expression": "1 + 2"}}

    async def play(number: int, first: float) -> None:
        nonlocal asked
        async with session_on(Server(f"http://127.0.0.1:{port}", 30.0)) as session:
            await session.reset({"seed": number})
            left = 5  # an episode has so many turns
            await asyncio.sleep(first)
            while time.monotonic() < ends:
                if not left:
                    await session.reset({"seed": number})
                    left = 5
                asked += 1
                begun = time.perf_counter()
                await session.step(action)
                times.append(time.perf_counter() - begun)
                left -= 1
                await asyncio.sleep(options.every - (time.perf_counter() - begun))

    playing = [
        asyncio.create_task(play(number, generator.uniform(0, options.every)))
        for number in range(options.sessions)
    ]
    ended = await asyncio.gather(*playing, return_exceptions=True)
    faults = [one for one in ended if one is not None]
    for fault in faults[:3]:
        print(f"a session ended: {fault!r}")
    times.sort()
    return {
        "steps": asked,
        "answered": len(times),
        "sessions_lost": len(faults),
        "p50_s": times[len(times) // 2],
        "p99_s": times[int(len(times) * 0.99)],
    }


async def cut_many(port: int, options: argparse.Namespace) -> dict[str, float]:
    """Cut connections in every way; then count the sessions that can be had."""
    began = time.monotonic()
    generator = random.Random(options.seed)
    places = asyncio.Semaphore(_HELD_AT_ONCE)

    async def one(kind: int) -> None:
        async with places:
            await _cut(port, kind, generator.random())

    kinds = [number % 5 for number in range(options.cuts)]
    await asyncio.gather(*(one(kind) for kind in kinds))
    cut = time.monotonic()
    free = 0
    while free < options.sessions and time.monotonic() < cut + 60:
        free = await _free(port, options.sessions)
    return {
        "cuts": options.cuts,
        "seconds": cut - began,
        "free": free,
        "free_after_s": time.monotonic() - cut,
    }


_UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def _frame(text: bytes) -> bytes:
    mask = os.urandom(4)
    body = bytes(byte ^ mask[place % 4] for place, byte in enumerate(text))
    assert len(text) < 126, "of a frame with a short length"
    return bytes([0x81, 0x80 | len(text)]) + mask + body


async def _cut(port: int, kind: int, draw: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if kind == 0:  # in the middle of the head
            writer.write(_UPGRADE[: int(draw * len(_UPGRADE))])
        else:
            writer.write(_UPGRADE)
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        if kind >= 2:
            message = _frame(b'{"type": "reset", "data": {"seed": 1}}')
            # in the middle of a message, or while it is answered
            writer.write(message if kind > 2 else message[: max(1, int(draw * len(message)))])
        await writer.drain()
        if kind == 4:
            linger = writer.get_extra_info("socket")
            linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except (OSError, asyncio.IncompleteReadError):
        pass  # refused: it was cut from the other side
    writer.transport.abort()


async def fall_silent(port: int, options: argparse.Namespace) -> dict[str, float]:
    """Take all sessions with clients that say and answer nothing more; wait until they are free."""
    held = []
    for _ in range(options.sessions):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_UPGRADE + _frame(b'{"type": "reset", "data": {"seed": 1}}'))
        await reader.readuntil(b"\r\n\r\n")
        held.append(writer)
    began = time.monotonic()
    free = 0
    while free < options.sessions and time.monotonic() < began + 120:
        await asyncio.sleep(1)
        free = await _free(port, options.sessions)
    for writer in held:
        writer.transport.abort()
    return {"free_of_silent": free, "silent_s": time.monotonic() - began}


async def _free(port: int, wanted: int) -> int:
    """Sessions that can be begun at one time."""
    from espalier_interop.openenv.session import (
        EnvironmentLostError,
        RemoteSession,
        Server,
        session_on,
    )

    sessions = [session_on(Server(f"http://127.0.0.1:{port}", 5.0)) for _ in range(wanted)]

    async def begin(session: RemoteSession) -> bool:
        try:
            await session.reset({"seed": 1})
        except EnvironmentLostError:
            return False
        return True

    begun = await asyncio.gather(*(begin(session) for session in sessions))
    for session in sessions:
        session.abort()
    return sum(begun)


def _resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
