"""Fuzz target: the endpoint that records agents, in its three wire formats."""

import asyncio
import contextlib
import json

from espalier.config import ServingConfig
from espalier.rollout.engines.engine import Sampling
from espalier_interop.recording.attempt import CallLimits, Policy
from espalier_interop.recording.dialects import RequestDialects
from espalier_interop.recording.endpoint import RecordingEndpoint, recording
from espalier_interop.recording.recorder import Recorder
from tests.factories.tiny import tiny_dialect
from tests.fakes.scripted_engine import ScriptedEngine, ScriptedSession
from tests.fuzz.campaign import Target, Violation
from tests.fuzz.mutations import changed_bytes, changed_json, request_bytes, written_json
from tests.fuzz.servers import exchange

_ID = "A" * 24
"""Stands for the id of an attempt, which is as long."""
_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
_CALL = "<think> country </think> <search> lyon country </search>"
_CHAT = {
    "model": "any", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "country"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function",
             "function": {"name": "search", "arguments": '{"query": "x"}'}}
        ]},
        {"role": "tool", "content": "y", "tool_call_id": "c1"},
    ],
    "tools": [{"type": "function", "function": {"name": "search", "parameters": _SCHEMA,
                                                "strict": True}}],
    "max_tokens": 30, "temperature": 0.5, "stream": True,
    "stream_options": {"include_usage": True}, "parallel_tool_calls": False,
}  # fmt: skip
_RESPONSES = {
    "model": "any", "instructions": "be brief", "input": [
        {"role": "user", "content": "country"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"query": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "y"},
    ],
    "tools": [{"type": "function", "name": "search", "parameters": _SCHEMA, "strict": True}],
    "max_output_tokens": 30, "stream": True, "store": False, "previous_response_id": None,
}  # fmt: skip
_MESSAGES = {
    "model": "any", "max_tokens": 30, "system": [{"type": "text", "text": "be brief"}],
    "messages": [
        {"role": "user", "content": "country"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "x", "signature": ""},
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"query": "x"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "y"}]}
        ]},
    ],
    "tools": [{"name": "search", "input_schema": _SCHEMA}], "stream": True,
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
}  # fmt: skip
_REWARD = {"terms": {"outcome": 1.0, "brevity": -0.5}}
_BODIES = {
    "v1/chat/completions": _CHAT,
    "v1/responses": _RESPONSES,
    "v1/messages": _MESSAGES,
    "reward": _REWARD,
}
_ENDS = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete")
_STATUSES = frozenset({200, 400, 403, 404, 405, 408, 409, 413, 415, 429, 431, 501, 503})


class _Engine(ScriptedEngine):
    """Writes the same call in every session."""

    async def open(self, prompt_ids, sampling):
        assert isinstance(sampling, Sampling)
        self.actions.append(list(self.stop_rule.text_ids(_CALL)))  # one for each session
        return ScriptedSession(self, prompt_ids)


class Recording(Target):
    """The recording endpoint as it is served; each case asks in the name of a new attempt."""

    name = "recording"
    at_once = 16
    case_s = 10.0

    def make(self, dice):
        """A request, nearly one of a wire format."""
        path = dice.choice(tuple(_BODIES))
        value = _BODIES[path]
        if dice.random() < 0.8:
            value = changed_json(dice, value)
        body = written_json(dice, value)
        if dice.random() < 0.1:
            path = dice.choice((*_BODIES, "", "end", "v1/models", "v1", "v1//messages", "%00"))
        if dice.random() < 0.1:
            body = changed_bytes(dice, body)
        sent = request_bytes(dice, "POST", f"/attempts/{_ID}/{path}", body)
        return changed_bytes(dice, sent) if dice.random() < 0.15 else sent

    async def run(self, case):
        """See `Target`."""
        attempt = self._recorder.begin()
        sent = case.replace(_ID.encode(), attempt.attempt_id.encode())
        reader, writer = await asyncio.open_connection(*self._where, limit=2**20)
        answer = await exchange(reader, writer, sent, method=case.split(b" ", 1)[0])
        self._recorder.close(attempt)
        trajectory = self._recorder.ended(attempt, None, task_id="t", group_id="t")
        sampled = sum(len(call.answer_ids) for call in attempt.graph.calls)
        if sum(trajectory.action_mask) != sampled:
            raise Violation(f"{sampled} tokens were sampled, and {trajectory.action_mask} trained")
        if answer is None:
            return "closed"
        _expect_answer(answer, case)
        return str(answer.status)

    async def check(self):
        """See `Target`."""
        if self._recorder.open_attempts > self.at_once:
            raise Violation(f"{self._recorder.open_attempts} attempts were not forgotten")
        for path, body in _BODIES.items():
            attempt = self._recorder.begin()
            content = json.dumps(body).encode()
            head = f"POST /attempts/{attempt.attempt_id}/{path} HTTP/1.1\r\nhost: x\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
            reader, writer = await asyncio.open_connection(*self._where, limit=2**20)
            answer = await exchange(reader, writer, head.encode() + content, method=b"POST")
            self._recorder.close(attempt)
            if answer is None or answer.status != 200:
                raise Violation(f"{path}: {answer and (answer.status, answer.body[:300])}")

    @contextlib.asynccontextmanager
    async def opened(self):
        """See `Target`."""
        dialect = tiny_dialect()
        limits = CallLimits(max_tokens=4000, max_answer_tokens=64, max_calls=8, call_timeout_s=5.0)
        engine = _Engine(dialect, [])
        self._recorder = Recorder(Policy(engine, RequestDialects(dialect)), limits)
        bounds = ServingConfig(
            head_timeout_s=1.0, body_timeout_s=1.0, idle_timeout_s=2.0, drain_s=1.0
        )
        endpoint = RecordingEndpoint(self._recorder, bounds)
        async with recording(endpoint, bounds) as base:
            host, _, port = base.removeprefix("http://").partition(":")
            self._where = host, int(port)
            yield self


def _expect_answer(answer, case):
    """An answer of the path's format, or an error in its shape.

    Raises:
        Violation: it is neither.
    """
    told = f"status {answer.status}: {answer.body[:300]!r}"
    if not answer.is_whole or answer.status not in _STATUSES:
        raise Violation(told)
    kind = answer.headers.get(b"content-type", b"").partition(b";")[0]
    if kind == b"text/event-stream":
        if not any(end in answer.body for end in _ENDS):
            raise Violation(f"a stream without an end: {told}")
        return
    if not answer.body:
        return  # of a HEAD
    try:
        content = json.loads(answer.body)
    except ValueError as error:
        raise Violation(told) from error
    if answer.status >= 400:
        error = content.get("error")
        if not isinstance(error, dict) or not error.get("message") or not error.get("type"):
            raise Violation(f"no error object: {told}")
