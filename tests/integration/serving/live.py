"""Endpoints that really listen on loopback, over the lock-step engine or one whose pace is set."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager, contextmanager

import httpx2

from espalier.config import ServingConfig
from espalier.rollout.engines.engine import Completion, EngineCounters
from espalier.rollout.engines.lockstep import lockstep_engine
from espalier.serving.app import Endpoint
from espalier.serving.engine_thread import EngineThread
from espalier.serving.served_policy import PolicyStops, ServedPolicy
from espalier.serving.server import Door, DrainingServer
from espalier.serving.source import Source
from espalier.wire.listening import listening
from tests.factories.tiny import tiny_policy, tiny_tokenizer
from tests.integration.waiting import wait_until

CONTEXT = 128
SEED = 11
"""Of requests that name none."""


def lockstep(rows=4, stop_ids=()):
    return lockstep_engine(tiny_policy().model, PolicyStops(frozenset(stop_ids)), max_rows=rows)


class PacedEngine:
    """Writes one token after the other, each in `token_s`; counts the sessions that are open."""

    def __init__(self, *, rows=2, token_s=0.005, breaks=False):
        self.policy_version = 0
        self.counters = EngineCounters()
        self.open_sessions = 0
        self.sampled = 0
        self._rows = rows
        self._token_s = token_s
        self._breaks = breaks

    @asynccontextmanager
    async def serving(self):
        self._slots = asyncio.Semaphore(self._rows)
        yield

    async def open(self, prompt_ids, sampling):
        await self._slots.acquire()
        self.open_sessions += 1
        return _PacedSession(self)


class ScriptedEngine(PacedEngine):
    """Writes the next message of a script for each session; notes the prompts."""

    def __init__(self, messages):
        super().__init__(token_s=0.0)
        self.messages = list(messages)
        self.prompts = []

    async def open(self, prompt_ids, sampling):
        self.prompts.append(tuple(prompt_ids))
        await super().open(prompt_ids, sampling)
        return _ScriptedSession(self, list(self.messages.pop(0)))


class _PacedSession:
    def __init__(self, engine):
        self._engine = engine

    async def sample(self, *, max_tokens):
        if self._engine._breaks:
            raise RuntimeError("out of memory")
        await asyncio.sleep(self._engine._token_s * max_tokens)
        self._engine.sampled += max_tokens
        return Completion((300,) * max_tokens, (-1.0,) * max_tokens, stopped=False)

    def observe(self, token_ids):
        raise AssertionError("the endpoint observes nothing")

    def close(self):
        self._engine.open_sessions -= 1
        self._engine._slots.release()


class _ScriptedSession(_PacedSession):
    def __init__(self, engine, token_ids):
        super().__init__(engine)
        self._left = token_ids

    async def sample(self, *, max_tokens):
        piece, self._left = tuple(self._left[:max_tokens]), self._left[max_tokens:]
        return Completion(piece, (-1.0,) * len(piece), stopped=not self._left)


@contextmanager
def listening_endpoint(
    engine, *, context=CONTEXT, tokenizer=None, dialect="auto", door=None, verify=True, **settings
):
    """Serve `engine` behind `tokenizer`, or the tiny one; yields a client of it."""
    config = ServingConfig(**{"rows": 4, "max_waiting": 60, "linger_s": 0.0, **settings})
    door = door or Door()
    source = Source(names=("tiny", "models:/tiny/1"), created=1, described={"version": "1"})
    policy = ServedPolicy(
        source=source,
        tokenizer=tokenizer or tiny_tokenizer(),
        engine=engine,
        vocabulary=400,
        context=context,
        dialect=dialect,
    )
    endpoint = Endpoint(config, lambda: SEED, door.keys)
    writer = EngineThread(engine)
    writer.start()
    endpoint.serve(policy, writer)
    try:
        with client_of(endpoint, config, door, verify=verify) as client:
            yield client
    finally:
        writer.stop()


@contextmanager
def client_of(endpoint, config, door, *, verify=True):
    """Listen with an endpoint; yields a client of it."""
    server = DrainingServer(endpoint, config, door)
    with listening("127.0.0.1", 0) as listener:
        serving = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        serving.start()
        wait_until(lambda: server.started)
        address = f"{'https' if door.tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with httpx2.Client(base_url=address, timeout=60, verify=verify) as client:
                yield client
        finally:
            server.should_exit = True
            serving.join()


def events(answer):
    """What a stream says, without its end mark; the mark must be there."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
