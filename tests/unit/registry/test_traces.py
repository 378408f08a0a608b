"""Trajectories as traces of MLflow: what of an episode is kept, and how much."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest


def traced(parent, stage, episodes):
    with parent.stage(stage) as tracker:
        tracker.episodes(episodes)
    return tracker.run.client.search_traces(
        locations=[tracker.run.experiment_id], run_id=tracker.run.run_id
    )


def assistant(content="", **fields):
    return {"role": "assistant", "content": content, **fields}


def test_a_call_is_written_as_openai_writes_it(parent):
    call = {"call_id": "c1", "name": "search", "arguments": {"query": "Oslo"}}
    episode = {
        "messages": [
            SimpleNamespace(role="user", content="Where is Oslo?"),
            assistant(tool_calls=[call]),
            {"role": "tool", "content": "Norway", "name": "find"},
            assistant("Norway"),
        ],
        "reward": 0.5,
        "finish_reason": "answered",
    }
    (trace,) = traced(parent, "called", [episode])
    assert trace.info.status == "OK"
    spans = {span.name: span for span in trace.data.spans}
    written = spans["find"].inputs["action"]
    function = {"name": "search", "arguments": json.dumps({"query": "Oslo"})}
    assert written == [{"id": "c1", "type": "function", "function": function}]
    root = spans["episode"]
    assert [message["content"] for message in root.inputs["messages"]] == ["Where is Oslo?"]
    assert [message["content"] for message in root.outputs["messages"]] == ["Norway"]
    (reward,) = trace.info.assessments
    assert (reward.value, reward.metadata) == (0.5, None)


@pytest.mark.parametrize("episode", [{}, {"messages": "text", "tools": 3, "reward": "high"}])
def test_an_empty_episode_is_a_trace_without_a_reward(parent, episode):
    (trace,) = traced(parent, f"empty {len(episode)}", [episode])
    assert [span.name for span in trace.data.spans] == ["episode"]
    assert trace.info.assessments == []


def test_an_answer_that_nobody_asked_for_is_shown(parent):
    episode = {"messages": [{"role": "tool", "content": "Oslo"}], "finish_reason": "max_turns"}
    (trace,) = traced(parent, "odd", [episode])
    assert trace.info.status == "ERROR"
    (span,) = [span for span in trace.data.spans if span.name == "tool"]
    assert (span.inputs, span.outputs) == ({"action": ""}, {"observation": "Oslo"})
