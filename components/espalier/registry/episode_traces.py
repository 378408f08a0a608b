"""Trajectories as MLflow traces: one trace an attempt, one child span a tool call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from espalier.registry.tracker import RunHandle

MAX_TRACES = 20
"""A run keeps so many trajectories as traces; all of them are in the stage's own artifact."""

_FINISHED_WELL = "answered"


class _Call(NamedTuple):
    action: str
    observation: str


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
    """Write each episode (`task_id`, `messages`, `reward`, `finish_reason`) as one trace."""
    import mlflow

    mlflow.set_tracking_uri(run.uri)
    for episode in episodes:
        _log_trace(run, episode)


def _log_trace(run: RunHandle, episode: Mapping[str, object]) -> None:
    messages = _messages(episode.get("messages"))
    finish_reason = str(episode.get("finish_reason", ""))
    reward = episode.get("reward")
    root = run.client.start_trace(
        str(episode.get("task_id", "episode")),
        span_type="AGENT",
        inputs={"messages": messages[:1]},
        attributes={"reward": str(reward), "finish_reason": finish_reason},
        tags={"espalier.task_id": str(episode.get("task_id", "")), "espalier.reward": str(reward)},
        experiment_id=run.experiment_id,
        run_id=run.run_id,
    )
    for call in _calls(messages):
        span = run.client.start_span(
            "search",
            trace_id=root.trace_id,
            parent_id=root.span_id,
            span_type="TOOL",
            inputs={"action": call.action},
        )
        run.client.end_span(root.trace_id, span.span_id, outputs={"observation": call.observation})
    run.client.end_trace(
        root.trace_id,
        outputs={"messages": messages[-1:]},
        attributes={"messages": messages},
        status="OK" if finish_reason == _FINISHED_WELL else "ERROR",
    )


def _messages(value: object) -> list[dict[str, str]]:
    """Chat messages as plain dicts; they come as dicts or as `Message` objects."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [_message(item) for item in value]


def _message(item: object) -> dict[str, str]:
    if isinstance(item, Mapping):
        return {"role": str(item.get("role", "")), "content": str(item.get("content", ""))}
    return {"role": str(getattr(item, "role", "")), "content": str(getattr(item, "content", ""))}


def _calls(messages: Sequence[Mapping[str, str]]) -> Iterator[_Call]:
    """What the policy asked for and what came back: a tool message after an assistant message."""
    for before, message in itertools.pairwise(messages):
        if message["role"] == "tool":
            yield _Call(before["content"], message["content"])
