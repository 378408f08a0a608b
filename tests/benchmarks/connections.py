"""What thousands of silent and slow connections do to a well-behaved request beside them: nothing.

    python -m tests.benchmarks.connections

An endpoint with the default bounds runs in a process of its own, over an engine that writes a token
a millisecond. 10,000 connections come to it, at most `serving.max_connections` at once and all on
loopback: some say nothing, some send head or body a byte at a time, some never read a long answer,
some half-close, some stay idle after a request. Each stays until the endpoint closes it, or 12 s.
Meanwhile one client asks for a completion again and again, each time on a new connection, and
another asks /healthz and /readyz as a kubelet does. All must be answered with 200 within 2 s. About
three minutes; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from espalier.config import ServingConfig
from tests.benchmarks.keeping import provenance

WITHIN_S = 2.0
_STAYS_S = 12.0
_TRICKLE_S = 0.5
_PAUSE_S = 0.1
_HOST = "127.0.0.1"
_HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
_ASKED = {"model": "tiny", "prompt": [20, 21, 22], "max_tokens": 4}
_LONG = {"model": "tiny", "prompt": [300] * 20_000, "max_tokens": 2, "n": 4, "stream": True}


@dataclass
class Beside:
    """What the well-behaved clients met."""

    request_s: list[float] = field(default_factory=list[float])
    probe_s: list[float] = field(default_factory=list[float])
    faults: Counter[str] = field(default_factory=Counter[str])


def main() -> None:
    """Serve in a process of its own, attack it, and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=10_000, help="in all")
    parser.add_argument("--at-once", type=int, default=ServingConfig().max_connections)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    _allow_open_files(options.at_once + 256)
    with server() as (port, pid):
        before_mib = resident_mib(pid)
        beside, ended, seconds = asyncio.run(attack(options, port))
        figures = report(options, beside, ended, seconds)
        after = asyncio.run(settled(port))
        figures |= {"server_mib": [before_mib, resident_mib(pid)], **after}
    print(json.dumps({**figures, **provenance(0)}))
    if figures["faults"] or figures["slowest_s"] > WITHIN_S:
        sys.exit(1)


def serve() -> None:
    """Serve until the standard input ends."""
    from espalier.serving.server import within_open_files
    from tests.integration.serving.live import PacedEngine, listening_endpoint

    within_open_files(ServingConfig(), sys.exit)  # nothing is measured with fewer
    engine = PacedEngine(rows=64, token_s=0.001)
    bounds = {"rows": 64, "max_waiting": 256, "max_context": 32_768}
    with listening_endpoint(engine, context=32_768, **bounds) as client:
        print(client.base_url.port, flush=True)
        sys.stdin.read()


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """Port and process id of the endpoint."""
    command = [sys.executable, "-m", "tests.benchmarks.connections", "--serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.stdin.close()


async def attack(
    options: argparse.Namespace, port: int
) -> tuple[Beside, Counter[tuple[str, str]], float]:
    """Open all connections while the well-behaved ask; how each ended, by kind."""
    beside, ended, over = Beside(), Counter[tuple[str, str]](), asyncio.Event()
    numbers = iter(range(options.connections))
    kinds = list(KINDS)
    began_s = time.monotonic()

    async def place() -> None:
        for number in numbers:
            kind = kinds[number % len(kinds)]
            dice = random.Random(f"{options.seed}:{number}")
            await asyncio.sleep(dice.random() * _PAUSE_S)
            ended[kind, await _attacked(port, KINDS[kind])] += 1
            if sum(ended.values()) % 1000 == 0:
                print(f"{sum(ended.values()):6d} ended, {time.monotonic() - began_s:5.0f} s")

    asking = [
        asyncio.create_task(ask_on(beside, over, port)),
        asyncio.create_task(probe_on(beside, over, port)),
    ]
    async with asyncio.TaskGroup() as group:
        for _ in range(options.at_once):
            group.create_task(place())
    over.set()
    await asyncio.gather(*asking)
    return beside, ended, time.monotonic() - began_s


Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _attacked(port: int, attacked: Attack) -> str:
    """How a connection ended: the endpoint closed it (what it said last), or it was given up."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.settimeout(0)
    writer = None
    try:
        await asyncio.get_running_loop().sock_connect(line, (_HOST, port))
        reader, writer = await asyncio.open_connection(sock=line, limit=4096)
        async with asyncio.timeout(_STAYS_S):
            await attacked(reader, writer)
        return "closed"
    except TimeoutError:
        return "given up"
    except OSError as error:
        return "closed" if isinstance(error, ConnectionError) else type(error).__name__
    finally:
        if writer is not None:
            writer.transport.abort()
        line.close()


async def _until_closed(reader: asyncio.StreamReader) -> None:
    while await reader.read(4096):
        pass


async def _trickled(writer: asyncio.StreamWriter, sent: bytes) -> None:
    for byte in sent:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(_TRICKLE_S)


async def _silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await _until_closed(reader)


async def _head_by_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    trickling = asyncio.create_task(_trickled(writer, _HEAD * 9))
    try:
        await _until_closed(reader)
    finally:
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)


async def _body_by_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"content-length: 5000\r\n\r\n")
    trickling = asyncio.create_task(_trickled(writer, b" " * 5000))
    try:
        await _until_closed(reader)
    finally:
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)


async def _never_reads(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = json.dumps({**_LONG, "return_token_ids": True}).encode()
    writer.transport.pause_reading()  # type: ignore[attr-defined] (a transport that reads as well)
    writer.write(_HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    while True:  # a closed connection is noticed by writing
        await asyncio.sleep(1.0)
        writer.write(b"\r\n")
        await writer.drain()


async def _half_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD)
    writer.write_eof()
    await _until_closed(reader)


async def _idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    await _until_closed(reader)


KINDS: dict[str, Attack] = {
    "silent": _silent,
    "head a byte at a time": _head_by_bytes,
    "body a byte at a time": _body_by_bytes,
    "never reads its answer": _never_reads,
    "half-closed": _half_closed,
    "idle after a request": _idle,
}


async def ask_on(beside: Beside, over: asyncio.Event, port: int) -> None:
    """Ask for completions until the attack is over."""
    body = json.dumps(_ASKED).encode()
    sent = _HEAD + f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    while not over.is_set():
        await _asked(beside.request_s, beside.faults, "completion", port, sent)
        await asyncio.sleep(_PAUSE_S)


async def probe_on(beside: Beside, over: asyncio.Event, port: int) -> None:
    """Probe as a kubelet until the attack is over."""
    while not over.is_set():
        for path in ("/healthz", "/readyz"):
            sent = f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
            await _asked(beside.probe_s, beside.faults, path, port, sent)
        await asyncio.sleep(_PAUSE_S)


async def _asked(
    seconds: list[float], faults: Counter[str], what: str, port: int, sent: bytes
) -> None:
    began_s = time.monotonic()
    said = b""
    try:
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(_HOST, port)
            writer.write(sent)
            said = await reader.read()
            writer.close()
    except (OSError, TimeoutError) as error:
        faults[f"{what}: {type(error).__name__}"] += 1
    else:
        if not said.startswith(b"HTTP/1.1 200 "):
            faults[f"{what}: {said[9:12].decode() or 'closed'}"] += 1
    seconds.append(time.monotonic() - began_s)


async def settled(port: int) -> dict[str, object]:
    """What the endpoint counted, once the others have left."""
    await asyncio.sleep(1.0)
    reader, writer = await asyncio.open_connection(_HOST, port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    told = (await reader.read()).decode()
    writer.close()
    causes = re.findall(r'closed_connections_total\{cause="(\w+)"\} (\d+)', told)
    still = re.findall(r"espalier_serving_(connections|taken) (\d+)", told)
    return {
        "closed_by_cause": {cause: int(count) for cause, count in causes},
        "left_open": {name: int(count) for name, count in still},
    }


def report(
    options: argparse.Namespace,
    beside: Beside,
    ended: Counter[tuple[str, str]],
    seconds: float,
) -> dict[str, object]:
    """Print how each kind ended; the figures."""
    for (kind, how), count in sorted(ended.items()):
        print(f"{kind:24s} {how:12s} {count:6d}")
    for name, met in (("completions", beside.request_s), ("probes", beside.probe_s)):
        print(f"{name:24s} {len(met):6d}  p50 {_ms(met, 0.5)} ms  p99 {_ms(met, 0.99)} ms")
    return {
        "connections": sum(ended.values()),
        "at_once": options.at_once,
        "seconds": round(seconds, 1),
        "completions": len(beside.request_s),
        "completion_ms_p50_p99_max": [_ms(beside.request_s, q) for q in (0.5, 0.99, 1.0)],
        "probes": len(beside.probe_s),
        "probe_ms_p50_p99_max": [_ms(beside.probe_s, q) for q in (0.5, 0.99, 1.0)],
        "slowest_s": round(max(*beside.request_s, *beside.probe_s), 3),
        "faults": dict(beside.faults),
    }


def _ms(seconds: list[float], share: float) -> float:
    if share == 0.5:
        return round(1000 * statistics.median(seconds), 1)
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


def resident_mib(pid: int) -> float:
    """Memory of a process."""
    text = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
    return round(int(text.split()[1]) * 4096 / 2**20, 1)


def _allow_open_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


if __name__ == "__main__":
    main()
