"""The endpoints that `tests.benchmarks.recording` compares, each served by a process of its own.

All are asked over HTTP. Their engine takes `ANSWER_S` for an answer and computes nothing:

    recorded     the recording endpoint
    unrecorded   the same server, wire format, dialect, sampling and rendering; nothing is kept
    served       the endpoint of `espalier serve`
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from espalier.config import ServingConfig
from espalier.records import Malformed, action_of
from espalier.rollout.engines.engine import Completion, EngineCounters, Sampling
from espalier_interop.recording.attempt import Attempt, CallLimits, Policy
from espalier_interop.recording.attempt_manager import AttemptManager
from espalier_interop.recording.call_request import Answer, CallRequest
from espalier_interop.recording.dialects import RequestDialects
from espalier_interop.recording.endpoint import RecordingEndpoint, recording
from espalier_interop.recording.recorder import Recorder

ANSWER_S = 0.05
ROWS = 64
"""Answers that `espalier serve` samples at once."""
TOOL = {
    "name": "search",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    },
}
_SAYS = "<think> country </think> <search> lyon country </search>"
_CONTEXT = 8192
_LIMITS = CallLimits(max_tokens=_CONTEXT, max_answer_tokens=64, max_calls=64, call_timeout_s=30.0)
_BOUNDS = ServingConfig()
_PAGE_BYTES = 4096
_CORES = sorted(os.sched_getaffinity(0))
"""Of this machine, before any process is kept to some of them."""


class Spent(NamedTuple):
    """Time that a process has spent since its start, in seconds."""

    processor_s: float
    encoding_s: float = 0.0
    """Of encoding answers that stand in requests; see `Unrecorded`."""


class Held(NamedTuple):
    """What a process holds, once its garbage is collected."""

    resident_bytes: int
    open_attempts: int


class Server:
    """A process that serves one of the endpoints, and is asked about itself."""

    def __init__(self, pipe: Connection, *, records: bool) -> None:
        self._pipe = pipe
        self.records = records
        """Whether calls are asked at the address of an attempt that was begun."""
        self.base: str = pipe.recv()
        """Its address, without a slash at the end."""
        self.path: str = "" if records else pipe.recv()
        """Below it, where calls are asked that are no attempt's."""

    def spent(self) -> Spent:
        """What the process has spent so far."""
        self._pipe.send("spent")
        return self._pipe.recv()

    def held(self) -> Held:
        """What the process holds now."""
        self._pipe.send("held")
        return self._pipe.recv()


def leave_core_to_endpoints() -> None:
    """Keep this process off the last core, where there are several; see `serving`."""
    if others := _CORES[:-1]:
        os.sched_setaffinity(0, others)


@contextmanager
def serving(main: Callable[[Connection], None]) -> Iterator[Server]:
    """Run one of `record`, `answer` and `serve` as a process, on the last core."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=main, args=(theirs,))
    process.start()
    assert process.pid is not None, "the process was started"
    os.sched_setaffinity(process.pid, {_CORES[-1]})
    theirs.close()
    try:
        yield Server(ours, records=main is record)
        ours.send("end")
        process.join(20)
    finally:
        process.kill()


def record(pipe: Connection) -> None:
    """Serve the recording endpoint."""
    recorder = Recorder(_policy(), _LIMITS)

    async def serve() -> None:
        desk = AttemptManager(recorder, deadline_s=300.0, max_open=4096, hand_on=lambda _: None)
        async with recording(RecordingEndpoint(recorder, _BOUNDS, desk=desk), _BOUNDS) as base:
            pipe.send(base)
            await _asked(pipe, open_attempts=lambda: recorder.open_attempts)

    asyncio.run(serve())


def answer(pipe: Connection) -> None:
    """Serve the recording endpoint without what records."""
    recorder = _KeepsNothing(_policy(), _LIMITS)

    async def serve() -> None:
        async with recording(RecordingEndpoint(recorder, _BOUNDS), _BOUNDS) as base:
            pipe.send(base)
            pipe.send("/attempts/none/v1")
            await _asked(pipe, encoding_s=lambda: recorder.unrecorded.encoding_s)

    asyncio.run(serve())


def serve(pipe: Connection) -> None:
    """Serve the endpoint of `espalier serve`."""
    from tests.integration.serving.live import listening_endpoint

    policy = _policy()
    tokenizer = policy.dialects.of(()).tokenizer
    with listening_endpoint(
        policy.engine, context=_CONTEXT, tokenizer=tokenizer, rows=ROWS, dialect="tags"
    ) as client:
        pipe.send(str(client.base_url).rstrip("/"))
        pipe.send("/v1")
        asyncio.run(_asked(pipe))


async def _asked(
    pipe: Connection,
    *,
    open_attempts: Callable[[], int] = lambda: 0,
    encoding_s: Callable[[], float] = lambda: 0.0,
) -> None:
    """Answer the benchmark's questions until it ends."""
    while (asked := await asyncio.to_thread(pipe.recv)) != "end":
        if asked == "spent":
            pipe.send(Spent(time.process_time(), encoding_s()))
        else:
            pipe.send(Held(_resident_bytes(), open_attempts()))


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


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

    async def open(self, prompt_ids: object, sampling: object) -> _Answering:
        """See `Engine`."""
        del prompt_ids, sampling
        return _Answering(self._token_ids)


class _Answering:
    """A session; `espalier serve`, which looks for stop texts, takes its answer in pieces."""

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self._left = token_ids
        self._wait_s = ANSWER_S

    async def sample(self, *, max_tokens: int) -> Completion:
        """See `Session`."""
        if self._wait_s:
            await asyncio.sleep(self._wait_s)
            self._wait_s = 0.0
        piece, self._left = self._left[:max_tokens], self._left[max_tokens:]
        return Completion(piece, (-0.5,) * len(piece), stopped=not self._left)

    def close(self) -> None:
        """See `Session`."""


def _policy() -> Policy:
    from tests.factories.tiny import tiny_dialect

    dialect = tiny_dialect()
    engine: Any = _Clock(dialect.text_ids(_SAYS))
    return Policy(engine, RequestDialects(dialect))


class _KeepsNothing(Recorder):
    """Answers at every attempt's address, and has no attempts."""

    def __init__(self, policy: Policy, limits: CallLimits) -> None:
        super().__init__(policy, limits)
        self.unrecorded = Unrecorded(policy, limits)

    def attempt(self, attempt_id: str) -> Attempt:
        """See `Recorder`."""
        del attempt_id
        return self.unrecorded


class Unrecorded(Attempt):
    """Answers a call as an attempt does, and keeps nothing of it.

    A conversation is what its request says. So answers that stand in it are encoded from their
    text, which an attempt need not do; `encoding_s` says how long that took. Whatever else an
    attempt does and this does not is what recording costs.
    """

    def __init__(self, policy: Policy, limits: CallLimits) -> None:
        super().__init__("unrecorded", policy, limits, None)
        self.encoding_s = 0.0

    async def answer(self, asked: CallRequest) -> Answer:
        """See `Attempt`."""
        dialect = self._policy.dialects.of(asked.tools)
        prompt_ids = self._encoded(asked, dialect)
        most = self._most_tokens(asked, len(prompt_ids))
        sampling = Sampling(
            temperature=1.0 if asked.temperature is None else asked.temperature,
            seed=random.getrandbits(63) if asked.seed is None else asked.seed,
            top_p=asked.top_p or 1.0,
            top_k=asked.top_k or 0,
        )
        async with asyncio.timeout(self._limits.call_timeout_s):
            session = await self._policy.engine.open(prompt_ids, sampling)
            try:
                completion = await session.sample(max_tokens=most)
            finally:
                session.close()
        answer_id = uuid.uuid4().hex
        text = dialect.message_text(completion.token_ids)
        action = dialect.parse_text(text) if completion.stopped else Malformed("cut off")
        return Answer(
            answer_id=answer_id,
            created=int(time.time()),
            said=self._said(asked, action, text, answer_id),
            stopped=completion.stopped,
            prompt_ids=prompt_ids,
            token_ids=completion.token_ids,
        )

    def _encoded(self, asked: CallRequest, dialect: Any) -> tuple[int, ...]:
        """The conversation, message by message as `read_conversation` has it."""
        ids: list[int] = []
        for is_answer, run in groupby(asked.messages, key=lambda one: one.role == "assistant"):
            messages = tuple(run)
            if is_answer:
                began_s = time.perf_counter()
                for message in messages:
                    ids += dialect.action_ids(action_of(message))
                self.encoding_s += time.perf_counter() - began_s
            else:
                ids += dialect.result_ids(messages) if ids else dialect.prompt_ids(messages)
        return tuple(ids)
