"""What recording adds to a call: 64 agents at once, against the same engine without recording.

    python -m tests.benchmarks.recording

The same agents ask two endpoints in processes of their own, each over an engine that answers after
50 ms: the recording endpoint, and the one of `espalier serve`, which samples and does not record.
Agents hold conversations of six calls with a growing history and the tools of a family; each call
goes over a connection that stays open. The endpoints take turns, so that what else the machine does
falls on both. What is compared is the time of a call, median and p99. Then 2,000 attempts are
played, and what the process holds is compared before and after: ended attempts are forgotten. About
two minutes; the last line is one JSON object, and the exit status is 1 where a bound does not hold:
recording adds at most the larger of 1 % and 1 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2

from espalier.config import ServingConfig
from espalier.rollout.engines.engine import Completion, EngineCounters
from espalier.rollout.recording.attempt import CallLimits, Policy
from espalier.rollout.recording.desk import AttemptDesk
from espalier.rollout.recording.dialects import RequestDialects
from espalier.rollout.recording.endpoint import RecordingEndpoint, recording
from espalier.rollout.recording.recorder import Recorder
from tests.benchmarks.keeping import provenance

AGENTS = 64
CALLS = 6
ANSWER_S = 0.05
WORDS = "country currency answer lookup lyon france capital"
_CONTEXT = 8192


class _Clock:
    """An engine whose answers take as long as a model's would, and no computation."""

    policy_version = 0

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self.counters = EngineCounters()
        self._token_ids = token_ids

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """See `Engine`."""
        yield

    async def open(self, prompt_ids: object, sampling: object) -> _Clock:
        """See `Engine`."""
        del prompt_ids, sampling
        return self

    async def sample(self, *, max_tokens: int) -> Completion:
        """See `Session`."""
        await asyncio.sleep(ANSWER_S)
        token_ids = self._token_ids[:max_tokens]
        return Completion(token_ids, (-0.5,) * len(token_ids), stopped=True)

    def close(self) -> None:
        """See `Session`."""


def _engine() -> tuple[Any, _Clock]:
    from tests.factories.tiny import tiny_dialect

    dialect = tiny_dialect()
    return dialect, _Clock(dialect.text_ids("<think> answer </think> <answer> france </answer>"))


def _record(pipe: Connection) -> None:
    """Serve the recording endpoint until the pipe says to end; it is asked for its memory."""
    dialect, engine = _engine()
    limits = CallLimits(
        max_tokens=_CONTEXT, max_answer_tokens=64, max_calls=64, call_timeout_s=30.0
    )
    recorder = Recorder(Policy(engine, RequestDialects(dialect)), limits)
    bounds = ServingConfig()

    async def serve() -> None:
        desk = AttemptDesk(recorder, deadline_s=300.0, max_open=4096, hand_on=lambda _: None)
        endpoint = RecordingEndpoint(recorder, bounds, ("chat",), desk=desk)
        async with recording(endpoint, bounds) as base:
            pipe.send(base)
            while (asked := await asyncio.to_thread(pipe.recv)) != "end":
                assert asked == "held"
                pipe.send((_resident_bytes(), recorder.open_attempts))

    asyncio.run(serve())


def _serve(pipe: Connection) -> None:
    """Serve the endpoint that does not record."""
    from tests.integration.serving.live import listening_endpoint

    dialect, engine = _engine()
    with listening_endpoint(
        engine, context=_CONTEXT, tokenizer=dialect.tokenizer, rows=AGENTS, dialect="tags"
    ) as client:
        pipe.send(str(client.base_url).rstrip("/"))
        while pipe.recv() != "end":
            pipe.send((_resident_bytes(), 0))


def _resident_bytes() -> int:
    import gc

    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@contextmanager
def _process(main: Callable[[Connection], None]) -> Iterator[Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=main, args=(theirs,))
    process.start()
    try:
        yield ours
    finally:
        ours.send("end")
        process.join(20)
        process.kill()


async def _agent(client: httpx2.AsyncClient, url: str, number: int, calls: int) -> list[float]:
    """One conversation; seconds of each call."""
    dice = random.Random(number)
    messages: list[dict[str, Any]] = []
    tool = {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}  # fmt: skip  # noqa: E501
    took: list[float] = []
    for _ in range(calls):
        asked = " ".join(dice.choices(WORDS.split(), k=30))
        messages.append({"role": "user", "content": asked})
        body = {"model": "tiny", "messages": messages, "max_tokens": 64,
                "tools": [{"type": "function", "function": tool}]}  # fmt: skip
        began_s = time.perf_counter()
        answer = await client.post(f"{url}/chat/completions", json=body)
        took.append(time.perf_counter() - began_s)
        if answer.status_code != 200:
            raise SystemExit(f"{url}: {answer.status_code} {answer.text[:300]}")
        messages.append(answer.json()["choices"][0]["message"])
    return took


async def _begun(client: httpx2.AsyncClient, base: str, task: str) -> dict[str, str]:
    answer = await client.post(f"{base}/attempts", json={"task_id": task})
    return answer.json()


async def _round(base: str, number: int, *, records: bool, calls: int = CALLS) -> list[float]:
    """All agents once; seconds of each call."""
    limits = httpx2.Limits(max_connections=AGENTS, max_keepalive_connections=AGENTS)
    async with httpx2.AsyncClient(timeout=60, limits=limits) as client:

        async def play(agent: int) -> list[float]:
            if not records:
                return await _agent(client, f"{base}/v1", number * AGENTS + agent, calls)
            attempt = await _begun(client, base, f"t{agent}")
            took = await _agent(client, attempt["openai_base_url"], number * AGENTS + agent, calls)
            await client.post(attempt["reward_url"], json={"reward": 1.0})
            await client.post(attempt["end_url"])
            return took

        found = await asyncio.gather(*map(play, range(AGENTS)))
    return [seconds for one in found for seconds in one]


def _figures(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {
        "median_ms": round(1e3 * statistics.median(ordered), 3),
        "p99_ms": round(1e3 * p99, 3),
        "calls": len(ordered),
    }


def main() -> None:
    """Measure both endpoints in turn, then memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--attempts", type=int, default=2000, help="for the memory")
    options = parser.parse_args()
    took: dict[str, list[float]] = {"recorded": [], "plain": []}
    with _process(_record) as recorder, _process(_serve) as server:
        bases = {"recorded": recorder.recv(), "plain": server.recv()}
        for number in range(-1, options.rounds):
            names = ("recorded", "plain") if number % 2 else ("plain", "recorded")
            for name in names:
                found = asyncio.run(_round(bases[name], max(number, 0), records=name == "recorded"))
                if number >= 0:  # the round before warms caches
                    took[name] += found
        held = _memory(recorder, bases["recorded"], options.attempts)
    figures = {name: _figures(seconds) for name, seconds in took.items()}
    added = {
        key: round(figures["recorded"][key] - figures["plain"][key], 3)
        for key in ("median_ms", "p99_ms")
    }
    bounds = {key: round(max(1.0, 0.01 * figures["plain"][key]), 3) for key in added}
    holds = all(added[key] <= bounds[key] for key in added) and held["is_flat"]
    print(
        json.dumps(
            {
                "agents": AGENTS,
                **figures,
                "added": added,
                "bounds": bounds,
                "memory": held,
                "holds": holds,
                **provenance(1),
            }
        )
    )
    sys.exit(0 if holds else 1)


def _memory(recorder: Connection, base: str, attempts: int) -> dict[str, object]:
    """What the process holds after a first share of the attempts, and after all."""
    rounds = max(4, attempts // AGENTS)
    marks: list[int] = []
    left = 0
    for number in range(rounds):
        asyncio.run(_round(base, number, records=True, calls=2))
        if number in (rounds // 4, rounds - 1):
            recorder.send("held")
            resident, left = recorder.recv()
            marks.append(resident)
    grown = marks[-1] - marks[0]
    return {
        "attempts": rounds * AGENTS,
        "open_at_the_end": left,
        "grown_kib": grown // 1024,
        "is_flat": left == 0 and grown < 8 << 20,
    }


if __name__ == "__main__":
    main()
