"""Trajectories as MLflow traces: one trace an attempt, a child span for each turn and tool call.

AGENT task_id                   the first messages -> the last one; assessment `reward`
CHAT_MODEL policy             the messages so far -> the policy's message
TOOL search                   the policy's message -> what the tool answered
CHAT_MODEL policy             ...
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.entities import Span

    from espalier.registry.tracker import RunHandle

MAX_TRACES = 20
"""A run keeps so many trajectories as traces; all of them are in the stage's own artifact."""

_FINISHED_WELL = "answered"
_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Of a message in OpenAI's shape."""


def count_traces(run: RunHandle) -> int:
    """How many traces the run has, counted no further than `MAX_TRACES`."""
    found = run.client.search_traces(
        locations=[run.experiment_id],
        run_id=run.run_id,
        max_results=MAX_TRACES,
        include_spans=False,
    )
    return len(found)


def log_traces(run: RunHandle, episodes: Sequence[Mapping[str, object]]) -> None:
    """Write each episode as one trace: see `espalier.records.Tracker.episodes`."""
    import mlflow

    mlflow.set_tracking_uri(run.uri)
    for episode in episodes:
        _log_reward(_log_trace(run, episode), episode.get("reward"))


def _log_trace(run: RunHandle, episode: Mapping[str, object]) -> str:
    messages = _messages(episode.get("messages"))
    finish_reason = str(episode.get("finish_reason", ""))
    task_id = str(episode.get("task_id", "episode"))
    root = run.client.start_trace(
        task_id,
        span_type="AGENT",
        inputs={"messages": messages[:1]},
        attributes={"finish_reason": finish_reason},
        tags={"espalier.task_id": task_id},
        experiment_id=run.experiment_id,
        run_id=run.run_id,
    )
    tools = episode.get("tools")
    _log_spans(run, root, messages, iter(tools if isinstance(tools, Sequence) else ()))
    run.client.end_trace(
        root.trace_id,
        outputs={"messages": messages[-1:]},
        attributes={"messages": messages},
        status="OK" if finish_reason == _FINISHED_WELL else "ERROR",
    )
    return root.trace_id


def _log_spans(
    run: RunHandle, root: Span, messages: Sequence[Mapping[str, Any]], tools: Iterator[str]
) -> None:
    """A span for each message of the policy, and for each answer of a tool."""
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            name, span_type = "policy", "CHAT_MODEL"
            inputs: dict[str, Any] = {"messages": messages[:place]}
            outputs: dict[str, Any] = {"choices": [{"message": message}]}
        elif message["role"] == "tool":
            name, span_type = str(message.get("name") or next(tools, "tool")), "TOOL"
            before = messages[place - 1] if place else {}
            inputs = {"action": before.get("tool_calls") or before.get("content", "")}
            outputs = {"observation": message["content"]}
        else:
            continue
        span = run.client.start_span(
            name,
            trace_id=root.trace_id,
            parent_id=root.span_id,
            span_type=span_type,
            inputs=inputs,
            # tells MLflow's page how to show the messages
            attributes={"mlflow.message.format": "openai"} if span_type == "CHAT_MODEL" else None,
        )
        run.client.end_span(root.trace_id, span.span_id, outputs=outputs)


def _log_reward(trace_id: str, reward: object) -> None:
    """The reward as an assessment: a number, or named terms that add up to it."""
    import mlflow
    from mlflow.entities import AssessmentSource

    terms = reward if isinstance(reward, Mapping) else {}
    value = sum(terms.values()) if terms else reward
    if isinstance(value, int | float):
        mlflow.log_feedback(
            trace_id=trace_id,
            name="reward",
            value=float(value),
            source=AssessmentSource(source_type="CODE", source_id="espalier"),
            metadata={str(name): str(term) for name, term in terms.items()} or None,
        )


def _messages(value: object) -> list[dict[str, Any]]:
    """Chat messages as plain dicts; they come as dicts or as `Message` objects."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [_message(item) for item in value]


def _message(item: object) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        item = {field: getattr(item, field, None) for field in _FIELDS}
    present = {field: item[field] for field in _FIELDS if item.get(field)}
    calls = [_call(dict(call)) for call in item.get("tool_calls") or ()]
    return {"role": "", "content": "", **present, **({"tool_calls": calls} if calls else {})}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call as OpenAI's chat API has it, which MLflow's page shows as one."""
    if "function" in call:
        return dict(call)
    arguments = json.dumps(call.get("arguments", {}))
    function = {"name": call.get("name", ""), "arguments": arguments}
    return {"id": call.get("call_id", ""), "type": "function", "function": function}
