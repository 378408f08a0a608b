"""Traces in OTLP/JSON, read with the messages of OpenTelemetry's own package."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from espalier import __version__
from espalier.records import ToolSpec
from espalier.records.episodes import EpisodePlace
from espalier.records.spans import Span
from espalier.records.trajectory import FinishReason
from espalier_interop.exports.otlp import otlp_rows
from espalier_interop.exports.turns import ExportedTrajectory, exported_turns
from tests.factories.attempts import made_attempt
from tests.factories.records import make_task, make_trajectory
from tests.factories.sample_run import trajectory

GOLDEN = Path(__file__).with_name("golden") / "otlp.json"
TOOLS = (ToolSpec(name="search", parameters={"type": "object", "properties": {}}),)
KNOWN = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")} | {
    "error.type"
}
REQUIRED = {
    "invoke_agent": {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.agent.name"},
    "chat": {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"},
    "execute_tool": {"gen_ai.operation.name", "gen_ai.tool.name"},
}
"""Of the conventions: required attributes, and those that are where they are known."""
PARTS = {
    "text": {"content"},
    "reasoning": {"content"},
    "tool_call": {"name"},
    "tool_call_response": {"response"},
}
"""Of the conventions' schemas of messages: what a part of each type has to have."""


def exported(attempt, task=None, row=0):
    place = EpisodePlace(2, 1, 1_796_000_000.25)
    turns = exported_turns(attempt, task)
    return ExportedTrajectory(
        row, attempt, turns, task, TOOLS, place, "demo/trained_policy/streams"
    )


def spans_of(one):
    """The spans of an attempt, as OpenTelemetry's messages."""
    rows = otlp_rows(one)
    if not rows:
        return []
    (row,) = json.loads(json.dumps(rows))
    (group,) = row["resourceSpans"]
    (scope,) = group["scopeSpans"]
    for span in scope["spans"]:
        # OTLP/JSON writes ids as hexadecimal digits, protobuf's JSON as base64
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    read = json_format.ParseDict(row, trace_pb2.TracesData())
    return list(read.resource_spans[0].scope_spans[0].spans)


def attributes(holder):
    found = {}
    for pair in holder.attributes:
        kind = pair.value.WhichOneof("value")
        found[pair.key] = getattr(pair.value, kind)
    return found


def test_a_trace_is_the_one_kept_as_golden():
    task = make_task("task-1", gold=("Paris",))
    rows = otlp_rows(exported(trajectory(1, "Lyon | country: France", "Paris"), task))
    found = json.dumps(rows, indent=1).replace(f'"{__version__}"', '"VERSION"') + "\n"
    if not GOLDEN.exists():  # delete the file to write it anew, then read what changed
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


@pytest.mark.parametrize("seed", range(40))
def test_spans_have_the_attributes_of_the_conventions(seed):
    root, *children = spans_of(exported(made_attempt(seed)))
    for span in (root, *children):
        values = attributes(span)
        operation = values["gen_ai.operation.name"]
        assert REQUIRED[operation] <= values.keys()
        assert span.name.split(" ")[0] == operation
        assert {name for name in values if not name.startswith("espalier.")} <= KNOWN
    assert not root.parent_span_id
    assert {span.parent_span_id for span in children} <= {root.span_id}
    assert len({span.span_id for span in (root, *children)}) == 1 + len(children)
    assert {span.trace_id for span in children} == {root.trace_id}


@pytest.mark.parametrize("seed", range(40))
def test_every_message_of_the_policy_and_call_is_a_span(seed):
    attempt = made_attempt(seed)
    _, *children = spans_of(exported(attempt))
    expected = []
    for message in attempt.messages:
        if message.role == "assistant":
            expected.append("chat demo-trained_policy")
            expected += [f"execute_tool {call.name}" for call in message.tool_calls]
    assert [span.name for span in children] == expected


@pytest.mark.parametrize("seed", range(40))
def test_messages_follow_the_schemas_of_the_conventions(seed):
    for span in spans_of(exported(made_attempt(seed))):
        for name in ("gen_ai.input.messages", "gen_ai.output.messages"):
            for message in json.loads(attributes(span).get(name, "[]")):
                assert message["role"] in ("system", "user", "assistant", "tool")
                for part in message["parts"]:
                    assert PARTS[part["type"]] <= part.keys()


def test_tokens_of_an_attempt_are_the_sum_of_messages():
    attempt = made_attempt(3)
    root, *children = spans_of(exported(attempt))
    sampled = [attributes(span).get("gen_ai.usage.output_tokens", 0) for span in children]
    assert sum(sampled) == sum(attempt.action_mask)
    assert attributes(root)["gen_ai.usage.output_tokens"] == sum(attempt.action_mask)


def test_spans_keep_their_order_and_end_when_recorded():
    root, *children = spans_of(exported(made_attempt(3)))
    starts = [span.start_time_unix_nano for span in children]
    assert starts == sorted(set(starts))
    assert root.start_time_unix_nano == starts[0]
    assert root.end_time_unix_nano == children[-1].end_time_unix_nano == 1_796_000_000_250_000_000
    assert attributes(root)["espalier.times"] == "order"


def test_measured_times_are_those_of_the_spans():
    one = exported(trajectory(1, "x", "Paris"))
    spans = (
        Span("other", 0.0, 0.25, None),
        Span("sampling", 0.25, 1.0, 0),
        Span("tools", 1.0, 1.5, 0),
        Span("waiting", 1.5, 2.0, 1),
        Span("sampling", 2.0, 3.0, 1),
        Span("scoring", 3.0, 4.0, 1),
    )
    root, *children = spans_of(one._replace(trajectory=replace(one.trajectory, spans=spans)))
    end_ns = 1_796_000_000_250_000_000
    assert (root.end_time_unix_nano - root.start_time_unix_nano) == 4_000_000_000
    found = [
        (span.start_time_unix_nano - end_ns, span.end_time_unix_nano - end_ns) for span in children
    ]
    assert found == [
        (-3_750_000_000, -3_000_000_000),
        (-3_000_000_000, -2_500_000_000),
        (-2_000_000_000, -1_000_000_000),
    ]
    assert attributes(root)["espalier.times"] == "measured"


def test_times_that_miss_a_call_give_only_the_order():
    one = exported(trajectory(1, "x", "Paris"))
    spans = (Span("sampling", 0.0, 1.0, 0), Span("sampling", 2.0, 3.0, 1))
    root, *children = spans_of(one._replace(trajectory=replace(one.trajectory, spans=spans)))
    assert attributes(root)["espalier.times"] == "order"
    assert root.end_time_unix_nano - root.start_time_unix_nano == 1000 * len(children)


def test_a_lost_attempt_is_an_error_and_was_not_evaluated():
    messages = made_attempt(0).messages
    lost = make_trajectory(messages=messages, reward={}, finish_reason=FinishReason.TIMEOUT)
    root, *_ = spans_of(exported(lost))
    assert root.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    assert attributes(root)["error.type"] == "timeout"
    assert not root.events


def test_rewards_are_results_of_an_evaluation():
    root, *_ = spans_of(exported(trajectory(1, "x", "Paris")))
    assert {event.name for event in root.events} == {"gen_ai.evaluation.result"}
    found = {
        values["gen_ai.evaluation.name"]: values["gen_ai.evaluation.score.value"]
        for values in map(attributes, root.events)
    }
    expected = {"right": 1.0, "reward": 1.1, "reward/outcome": 1.0, "reward/format": 0.1}
    assert found == pytest.approx(expected)
    assert attributes(root.events[0])["gen_ai.evaluation.score.label"] == "pass"


@pytest.mark.parametrize(("exists", "kind"), [(True, "tool_error"), (False, "unknown_tool")])
def test_a_failed_call_is_an_error_of_its_span(exists, kind):
    attempt = trajectory(1, "failed", "Paris")
    failed = (replace(attempt.tool_results[0], succeeded=False, exists=exists),)
    spans = spans_of(exported(replace(attempt, tool_results=failed)))
    (tool,) = (span for span in spans if span.name.startswith("execute_tool"))
    assert tool.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    assert attributes(tool)["error.type"] == kind
    assert attributes(tool)["gen_ai.tool.call.result"] == "failed"
    assert tool.kind == trace_pb2.Span.SPAN_KIND_INTERNAL


def test_an_attempt_in_which_nothing_was_written_has_no_trace():
    asked = make_trajectory(messages=make_task().prompt)
    assert otlp_rows(exported(asked)) == []
