"""Traces of OpenTelemetry in OTLP/JSON, after its conventions for generative AI.

A line is a TracesData message with the spans of one attempt, as the file exporter of OpenTelemetry
writes them and a collector's `otlpjsonfile` receiver reads them:

    invoke_agent policy          the attempt, with an event for each result of its evaluation
      chat demo-trained_policy   a message of the policy, with its tokens
      execute_tool search        a call, with its arguments and result
      chat demo-trained_policy

Names and attributes are those of semantic-conventions-genai at commit 002c8a6e (status: in
development). Attributes of our own begin with `espalier.`.

An attempt ends when it was recorded. Where its record has measured times of all its messages and
calls, spans begin and end by them, and `espalier.times` is "measured". Else they lie in their
order, a microsecond each, which are no durations, and it is "order".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from pydantic import JsonValue

from espalier import __version__
from espalier.records import JsonObject, Message, ToolCall
from espalier.records.trajectory import FinishReason, ToolResult
from espalier_interop.exports.turns import (
    ExportedTrajectory,
    ExportedTurn,
    attempt_facts,
    model_name,
    results_of_calls,
    task_facts,
)

_INTERNAL, _CLIENT = 1, 3
"""SpanKind of OTLP."""
_ERROR = 2
"""StatusCode of OTLP; an unset one is left out."""
_SPAN_NS = 1000
_AGENT = "policy"
_PROVIDER = "espalier"


def otlp_rows(exported: ExportedTrajectory) -> list[JsonObject]:
    """Return the one TracesData of a trajectory; an empty list if the policy wrote nothing."""
    spans = _Spans(exported)
    if not any(turn.wrote for turn in exported.turns):
        return []
    for number, turn in enumerate(exported.turns):
        if turn.wrote is not None:
            spans.chat(number, turn, turn.wrote)
    resource = _attributes(
        {
            "service.name": "espalier",
            "service.version": __version__,
            "espalier.source": exported.origin,
        }
    )
    scope: JsonObject = {
        "scope": {"name": "espalier", "version": __version__},
        "spans": [*spans.finished()],
    }
    return [{"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]}]


class _Spans:
    """The spans of one attempt, in their order."""

    def __init__(self, exported: ExportedTrajectory) -> None:
        self._exported = exported
        self._model = model_name(exported.origin)
        self._results = results_of_calls(exported)
        place = exported.place
        time = place.time if place else None
        key = f"{exported.origin}|{exported.export_id}|{place}"
        self._trace = sha256(key.encode()).hexdigest()[:32]
        self._children: list[JsonObject] = []
        self._measured: list[tuple[float, float] | None] = []
        """Begin and end of each child, in seconds since the attempt began."""
        # whole microseconds: a float of seconds has no more digits
        self._recorded_ns = round((time or 0.0) * 1e6) * 1000

    def chat(self, number: int, turn: ExportedTurn, wrote: Message) -> None:
        """Add the span of a message of the policy, and one for each of its calls."""
        values: dict[str, object] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": _PROVIDER,
            "gen_ai.request.model": self._model,
            "gen_ai.response.finish_reasons": [self._finish_reason(number, wrote)],
            "gen_ai.output.messages": _json([_parts(wrote)]),
            "espalier.turn": number,
            "espalier.window": turn.window,
            "espalier.turn.reward": turn.reward,
        }
        if turn.wrote_ids:
            values["gen_ai.usage.input_tokens"] = len(turn.context_ids)
            values["gen_ai.usage.output_tokens"] = len(turn.wrote_ids)
        if not turn.window:
            # a later window begins with what was kept of the history, which no message shows
            values["gen_ai.input.messages"] = _json(
                [_parts(message) for message in self._history(number)]
            )
        sampled, called = (self._spans_of(kind, number) for kind in ("sampling", "tools"))
        whole = (sampled[0][0], sampled[-1][1]) if sampled else None
        self._add(f"chat {self._model}", _CLIENT, values, whole)
        has_all = len(called) == len(wrote.tool_calls)
        for place, call in enumerate(wrote.tool_calls):
            result = self._results.get(call.call_id)
            self._tool(call, result, called[place] if has_all else None)

    def finished(self) -> Iterator[JsonObject]:
        """Yield the span of the attempt, and those in it."""
        exported, trajectory = self._exported, self._exported.trajectory
        prompt, answered = exported.turns[0].read, exported.turns[-1].wrote
        facts = task_facts(exported) | attempt_facts(exported)
        values: dict[str, object] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": _PROVIDER,
            "gen_ai.agent.name": _AGENT,
            "gen_ai.agent.version": str(trajectory.policy_version),
            "gen_ai.request.model": self._model,
            "gen_ai.conversation.id": exported.export_id,
            "gen_ai.input.messages": _json([_parts(message) for message in prompt]),
            "espalier.times": "order" if None in self._measured else "measured",
            **{
                f"espalier.{name}": value
                for name, value in facts.items()
                if value is not None and not isinstance(value, dict)
            },
        }
        if answered is not None:
            values["gen_ai.output.messages"] = _json([_parts(answered)])
        sampled = [turn for turn in exported.turns if turn.wrote_ids]
        if sampled:
            values["gen_ai.usage.input_tokens"] = sum(len(turn.context_ids) for turn in sampled)
            values["gen_ai.usage.output_tokens"] = sum(len(turn.wrote_ids) for turn in sampled)
        if exported.tools is not None:
            tools = [
                {
                    "type": "function",
                    "name": spec.name,
                    "description": spec.description,
                    "parameters": spec.parameters,
                }
                for spec in exported.tools
            ]
            values["gen_ai.tool.definitions"] = _json(tools)
        if trajectory.is_lost:
            values["error.type"] = trajectory.finish_reason.value
        times_ns, length_ns = self._times_ns()
        begin_ns = self._recorded_ns - length_ns
        root = self._span(f"invoke_agent {_AGENT}", _INTERNAL, 0, values)
        root |= _times(begin_ns, self._recorded_ns)
        if trajectory.is_lost:
            text = f"the attempt was lost ({trajectory.finish_reason.value}) and not judged"
            root["status"] = {"code": _ERROR, "message": text}
        else:
            root["events"] = [*self._evaluations()]
        yield root
        for child, (start_ns, end_ns) in zip(self._children, times_ns, strict=True):
            own = _times(begin_ns + start_ns, begin_ns + end_ns)
            yield child | {"parentSpanId": root["spanId"]} | own

    def _times_ns(self) -> tuple[list[tuple[int, int]], int]:
        """Return begin and end of each child since the attempt began, and its length."""
        measured = [span for span in self._measured if span is not None]
        if len(measured) == len(self._measured):
            length = max(span.end for span in self._exported.trajectory.spans)
            return [(round(a * 1e9), round(b * 1e9)) for a, b in measured], round(length * 1e9)
        places = range(0, _SPAN_NS * len(self._children), _SPAN_NS)
        return [(at, at + _SPAN_NS) for at in places], _SPAN_NS * len(self._children)

    def _spans_of(self, kind: str, turn: int) -> list[tuple[float, float]]:
        spans = self._exported.trajectory.spans
        return sorted((one.start, one.end) for one in spans if (one.kind, one.turn) == (kind, turn))

    def _tool(
        self, call: ToolCall, result: ToolResult | None, span: tuple[float, float] | None
    ) -> None:
        values: dict[str, object] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.call_id,
            "gen_ai.tool.call.arguments": _json(call.arguments),
        }
        if result is not None:
            values["gen_ai.tool.call.result"] = result.content
            if not result.succeeded:
                values["error.type"] = "tool_error" if result.exists else "unknown_tool"
        self._add(f"execute_tool {call.name}", _INTERNAL, values, span)
        if "error.type" in values:
            self._children[-1]["status"] = {"code": _ERROR}

    def _evaluations(self) -> Iterator[JsonObject]:
        trajectory = self._exported.trajectory
        results: list[tuple[str, float, str | None]] = [
            ("right", float(trajectory.is_right), "pass" if trajectory.is_right else "fail"),
            ("reward", trajectory.total_reward, None),
            *((f"reward/{term}", value, None) for term, value in trajectory.reward.items()),
        ]
        for name, value, label in results:
            values: dict[str, object] = {
                "gen_ai.evaluation.name": name,
                "gen_ai.evaluation.score.value": float(value),
            }
            if label is not None:
                values["gen_ai.evaluation.score.label"] = label
            yield {
                "timeUnixNano": str(self._recorded_ns),
                "name": "gen_ai.evaluation.result",
                "attributes": _attributes(values),
            }

    def _history(self, number: int) -> Iterator[Message]:
        """Yield the messages that the policy read before it wrote in turn `number`."""
        for turn in self._exported.turns[:number]:
            yield from turn.read
            if turn.wrote is not None:
                yield turn.wrote
        yield from self._exported.turns[number].read

    def _finish_reason(self, number: int, wrote: Message) -> str:
        is_last = number == len(self._exported.turns) - 1
        if is_last and self._exported.trajectory.finish_reason is FinishReason.MAX_TOKENS:
            return "length"
        return "tool_call" if wrote.tool_calls else "stop"

    def _add(
        self,
        name: str,
        kind: int,
        values: Mapping[str, object],
        span: tuple[float, float] | None,
    ) -> None:
        self._children.append(self._span(name, kind, len(self._children) + 1, values))
        self._measured.append(span)

    def _span(self, name: str, kind: int, number: int, values: Mapping[str, object]) -> JsonObject:
        return {
            "traceId": self._trace,
            "spanId": sha256(f"{self._trace}|{number}".encode()).hexdigest()[:16],
            "name": name,
            "kind": kind,
            "attributes": _attributes(values),
        }


def _times(start_ns: int, end_ns: int) -> JsonObject:
    # 64-bit numbers are strings in protobuf's JSON
    return {"startTimeUnixNano": str(start_ns), "endTimeUnixNano": str(end_ns)}


def _parts(message: Message) -> JsonObject:
    """Return a message by the conventions' schemas of input and output messages."""
    parts: list[JsonObject] = []
    if message.role == "tool":
        response: JsonObject = {"type": "tool_call_response", "id": message.call_id}
        parts.append(response | {"response": message.content})
        return {"role": message.role, "parts": [*parts]}
    if message.thought is not None:
        parts.append({"type": "reasoning", "content": message.thought})
    if message.content:
        parts.append({"type": "text", "content": message.content})
    parts += [
        {"type": "tool_call", "id": call.call_id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return {"role": message.role, "parts": [*parts]}


def _attributes(values: Mapping[str, object]) -> list[JsonValue]:
    return [{"key": name, "value": _value(value)} for name, value in values.items()]


def _value(value: object) -> JsonObject:
    """Return a value as OTLP's AnyValue."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(one) for one in value]}}
        case _:
            return {"stringValue": str(value)}


def _json(value: Sequence[object] | Mapping[str, object]) -> str:
    """Return what the conventions want structured as the JSON text that they permit on spans."""
    return json.dumps(value, ensure_ascii=False)
