"""What recording adds to a call: 64 agents at once, against the same endpoint without recording.

    python -m tests.benchmarks.recording

The same agents ask three endpoints in processes of their own, each over an engine that answers
after 50 ms: the recording endpoint; the same one with everything that records left out
(`unrecorded`); and the one of `espalier serve` (`served`), which does not record either. Agents
hold conversations of six calls, each with the tool calls and results before it; every call goes
over a connection that stays open. The endpoints take turns, so that what else the machine does
falls on all; they have a core, and the agents another. Printed are the time of a call, median and
p99, and the processor time that it takes in the endpoint's process. 64 answers are ready at the
same moment and one process writes them all, so that of what a call takes there a part is waited
for by the 63 others.

What recording adds is `recorded` less `unrecorded`. Two processes of one program differ as well, by
how they happen to lie in memory: the endpoints are started anew eight times, and the 95 % interval
of what recording adds (`added_between`) comes of drawing starts anew, each with both endpoints.
Recording saves something too: the answers in a history are kept as tokens, where the unrecorded
endpoint encodes their text (`encoding_answers_ms`, within its processor time). To begin, reward and
end an attempt are requests of their own, beside its calls: they take `attempt_processor_ms`.

Then 12,000 attempts are played, and what the process holds after the first half is compared with
what it holds after all: ended attempts are forgotten. About nine minutes; the last line is one JSON
object, and the exit status is 1 where a bound does not hold: recording adds at most the larger of
1 % and 1 ms, median and p99.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from tests.benchmarks.keeping import provenance
from tests.benchmarks.recording_endpoints import (
    TOOL,
    Held,
    Server,
    Spent,
    answer,
    leave_core_to_endpoints,
    record,
    serve,
    serving,
)

AGENTS = 64
CALLS = 6
WORDS = "country currency answer lookup lyon france capital"
ENDPOINTS = {"recorded": record, "unrecorded": answer, "served": serve}
Figures: TypeAlias = dict[str, float]
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Line:
    """A connection that stays open; a client library would take as long as the endpoint does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.answered_s = 0.0
        """How long the last request was answered."""

    async def post(self, path: str, body: object) -> Any:
        """The answer's JSON."""
        sent = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: benchmark\r\ncontent-type: application/json\r\n"
        began_s = time.perf_counter()
        self._writer.write(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        told = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(told)
        content = await self._reader.readexactly(int(length[1]) if length else 0)
        self.answered_s = time.perf_counter() - began_s
        if not told.startswith(b"HTTP/1.1 20"):
            raise SystemExit(f"{path}: {told.splitlines()[0]!r} {content[:300]!r}")
        return json.loads(content)


@asynccontextmanager
async def _lines(base: str) -> AsyncGenerator[list[Line]]:
    """A connection for each agent."""
    host, _, port = base.removeprefix("http://").partition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(AGENTS)]
    try:
        yield [Line(*one) for one in opened]
    finally:
        for _, writer in opened:
            writer.close()


async def _converse(line: Line, url: str, number: int, calls: int) -> list[float]:
    """One conversation; seconds of each call."""
    dice = random.Random(number)
    messages: list[dict[str, Any]] = []
    took: list[float] = []
    for _ in range(calls):
        words = " ".join(dice.choices(WORDS.split(), k=30))
        called = messages[-1]["tool_calls"] if messages else ()
        messages += [
            {"role": "tool", "tool_call_id": one["id"], "content": words} for one in called
        ]
        if not called:
            messages.append({"role": "user", "content": words})
        body = {"model": "tiny", "messages": messages, "max_tokens": 64,
                "tools": [{"type": "function", "function": TOOL}]}  # fmt: skip
        told = await line.post(f"{url}/chat/completions", body)
        took.append(line.answered_s)
        messages.append(told["choices"][0]["message"])
    return took


@dataclass(slots=True)
class Measured:
    """What was measured at one endpoint."""

    starts_s: list[list[float]] = field(default_factory=list[list[float]])
    """Of each call, by the start of the endpoint."""
    calls: Spent = field(default_factory=lambda: Spent(0.0))
    attempts: int = 0
    attempts_processor_s: float = 0.0
    """Of beginning, rewarding and ending them."""

    def figures(self) -> Figures:
        """Of a call."""
        calls = sum(map(len, self.starts_s))
        return {
            **call_times(self.starts_s),
            "processor_ms": round(1e3 * self.calls.processor_s / calls, 4),
            "encoding_answers_ms": round(1e3 * self.calls.encoding_s / calls, 4),
            "calls": calls,
        }


def call_times(starts_s: Sequence[Sequence[float]]) -> Figures:
    """Median and p99 of the calls of all starts."""
    ordered = sorted(chain.from_iterable(starts_s))
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {
        "median_ms": round(1e3 * statistics.median(ordered), 3),
        "p99_ms": round(1e3 * p99, 3),
    }


async def _round(server: Server, number: int, found: Measured, *, calls: int = CALLS) -> None:
    """All agents once; where attempts are recorded each plays one."""
    async with _lines(server.base) as lines:

        async def timed(work: Callable[[int], Awaitable[Any]]) -> tuple[list[Any], Spent]:
            """What came of it for each agent, and what the endpoint spent."""
            before = server.spent()
            came = await asyncio.gather(*map(work, range(AGENTS)))
            after = server.spent()
            return came, Spent(*(now - then for now, then in zip(after, before, strict=True)))

        paths = [server.path] * AGENTS
        if server.records:
            begun, spent = await timed(lambda n: lines[n].post("/attempts", {"task_id": f"t{n}"}))
            paths = [f"/attempts/{one['attempt_id']}/v1" for one in begun]
            found.attempts_processor_s += spent.processor_s

        async def converse(agent: int) -> list[float]:
            return await _converse(lines[agent], paths[agent], number * AGENTS + agent, calls)

        played, spent = await timed(converse)
        found.starts_s[-1] += [seconds for one in played for seconds in one]
        found.calls = Spent(*map(sum, zip(found.calls, spent, strict=True)))

        async def end(agent: int) -> None:
            attempt = paths[agent].removesuffix("/v1")
            await lines[agent].post(f"{attempt}/reward", {"reward": 1.0})
            await lines[agent].post(f"{attempt}/end", {})

        if server.records:
            _, spent = await timed(end)
            found.attempts_processor_s += spent.processor_s
            found.attempts += AGENTS


def _forgetting(server: Server, attempts: int) -> dict[str, object]:
    """What the process holds after half of the attempts, and after all.

    By then the texts that a dialect remembers are as many as they may be.
    """
    rounds = max(2, attempts // AGENTS)
    marks: list[Held] = []
    for number in range(rounds):
        asyncio.run(_round(server, number, Measured([[]]), calls=2))
        if number in (rounds // 2 - 1, rounds - 1):
            marks.append(server.held())
    grown = marks[-1].resident_bytes - marks[0].resident_bytes
    left = marks[-1].open_attempts
    return {
        "attempts": rounds * AGENTS,
        "open_at_the_end": left,
        "grown_kib": grown // 1024,
        "is_flat": left == 0 and grown < 2 << 20,
    }


def compared(recorded: Figures, peer: Figures) -> dict[str, Figures]:
    """What recording adds to a peer's figures, and the most that it may."""
    keys = ("median_ms", "p99_ms")
    return {
        "added": {key: round(recorded[key] - peer[key], 4) for key in (*keys, "processor_ms")},
        "most": {key: round(max(1.0, 0.01 * peer[key]), 3) for key in keys},
    }


def added_between(
    recorded: Measured, peer: Measured, *, resamples: int = 1000
) -> dict[str, tuple[float, float]]:
    """95 % intervals of what recording adds; a start of the one is drawn with that of the other."""
    dice = random.Random(0)
    drawn: list[Figures] = []
    for _ in range(resamples):
        picks = dice.choices(range(len(recorded.starts_s)), k=len(recorded.starts_s))
        mine, theirs = (
            call_times([one.starts_s[pick] for pick in picks]) for one in (recorded, peer)
        )
        drawn.append({key: mine[key] - theirs[key] for key in mine})
    low, high = int(0.025 * resamples), int(0.975 * resamples)
    ordered = {key: sorted(one[key] for one in drawn) for key in drawn[0]}
    return {key: (round(them[low], 3), round(them[high], 3)) for key, them in ordered.items()}


def is_within(comparison: Mapping[str, Figures]) -> bool:
    """Whether recording adds no more than it may, median and p99."""
    added = comparison["added"]
    return all(added[key] <= most for key, most in comparison["most"].items())


def _play(servers: Mapping[str, Server], rounds: int, found: Mapping[str, Measured]) -> None:
    """Ask each endpoint, `rounds` times in turn."""
    names = list(servers)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            asyncio.run(_round(servers[name], number, found[name]))


def main() -> None:
    """Measure the endpoints in turn, then memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=8, help="of the endpoints")
    parser.add_argument("--rounds", type=int, default=8, help="of a start")
    parser.add_argument(
        "--attempts",
        type=int,
        default=12_000,
        help="for the memory; half of them fill what is remembered",
    )
    options = parser.parse_args()
    leave_core_to_endpoints()
    found = {name: Measured() for name in ENDPOINTS}
    memory: dict[str, object] = {}
    for start in range(options.starts):
        with ExitStack() as stack:
            servers = {name: stack.enter_context(serving(it)) for name, it in ENDPOINTS.items()}
            _play(servers, 1, {name: Measured([[]]) for name in servers})  # warms caches
            for one in found.values():
                one.starts_s.append([])
            _play(servers, options.rounds, found)
            if start == options.starts - 1:
                memory = _forgetting(servers["recorded"], options.attempts)
    figures = {name: one.figures() for name, one in found.items()}
    print(f"{'':<12}{'median ms':>11}{'p99 ms':>10}{'processor ms a call':>21}")
    for name, one in figures.items():
        print(f"{name:<12}{one['median_ms']:>11}{one['p99_ms']:>10}{one['processor_ms']:>21}")
    comparison = compared(figures["recorded"], figures["unrecorded"])
    recorded = found["recorded"]
    holds = is_within(comparison) and bool(memory["is_flat"])
    told = {
        "agents": AGENTS,
        **figures,
        **comparison,
        "added_between": added_between(recorded, found["unrecorded"]),
        "added_to_served": compared(figures["recorded"], figures["served"])["added"],
        "attempt_processor_ms": round(1e3 * recorded.attempts_processor_s / recorded.attempts, 4),
        "memory": memory,
        "holds": holds,
        **provenance(1),
    }
    print(json.dumps(told))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
