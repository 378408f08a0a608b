"""A recorder over an engine that says what a test tells it, asked over its ASGI interface."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx2

from espalier.config import ServingConfig
from espalier_interop.recording.attempt import CallLimits, Policy
from espalier_interop.recording.dialects import RequestDialects
from espalier_interop.recording.endpoint import RecordingEndpoint
from espalier_interop.recording.recorder import Recorder
from tests.factories.tiny import tiny_dialect
from tests.fakes.scripted_engine import ScriptedEngine

CHAT = "v1/chat/completions"
CALL = "<think> country </think> <search> lyon country </search>"
OTHER_CALL = "<think> time </think> <search> lyon time zone </search>"
ANSWER = "<think> answer </think> <answer> france </answer>"
OTHER_ANSWER = "<think> answer </think> <answer> euro </answer>"
QUESTION = {"role": "user", "content": "What is the currency of the country of Lyon?"}
RESULT = "Lyon country: France"
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
LIMITS = CallLimits(max_tokens=256, max_answer_tokens=64, max_calls=8, call_timeout_s=5.0)


class Recorded:
    """A recorder, and ways to ask it as an agent does."""

    def __init__(self, *says, engine=None, limits=LIMITS, config=None):
        self.dialect = tiny_dialect()
        written = [self.dialect.text_ids(text) for text in says]
        self.engine = engine or ScriptedEngine(self.dialect, written)
        policy = Policy(self.engine, RequestDialects(self.dialect))
        self.recorder = Recorder(policy, limits)
        self.endpoint = RecordingEndpoint(self.recorder, config or ServingConfig())
        self.app = self.endpoint.app()

    @asynccontextmanager
    async def client(self, attempt):
        transport = httpx2.ASGITransport(app=self.app)
        address = f"http://agent/attempts/{attempt.attempt_id}/"
        async with httpx2.AsyncClient(transport=transport, base_url=address) as client:
            yield client

    def trajectory(self, attempt, verdict=None):
        self.recorder.close(attempt)
        return self.recorder.ended(attempt, verdict, task_id="t", group_id="t")


def chat(*messages, **fields):
    return {"model": "any", "messages": list(messages), "tools": [SEARCH], **fields}


def said(answer):
    """The assistant's message of a chat answer."""
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


def result_of(message, content=RESULT):
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": content}


def played(recorded, script, **begun):
    """A new attempt, and what `script(client)` finds in it."""

    async def play():
        attempt = recorded.recorder.begin(**begun)
        async with recorded.client(attempt) as client:
            return attempt, await script(client)

    return asyncio.run(play())


def posted(recorded, *bodies, path=CHAT, **begun):
    """A new attempt, and the answers to bodies that are posted to it one after the other."""

    async def post_all(client):
        return [await client.post(path, json=body) for body in bodies]

    return played(recorded, post_all, **begun)


async def asked(client, *messages, **fields):
    """The message that answers a conversation."""
    return said(await client.post(CHAT, json=chat(*messages, **fields)))


async def searched(client):
    """One search and an answer, as an agent plays them; the messages of the conversation."""
    call = await asked(client, QUESTION)
    messages = [QUESTION, call, result_of(call)]
    return [*messages, await asked(client, *messages)]


def sse(answer):
    """The data of the events of a stream."""
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
