"""Recording is compared with an endpoint that reads the same and keeps nothing."""

import asyncio

import pytest

from espalier.records import Message
from espalier.rollout.recording.asked import Asked
from espalier.rollout.recording.attempt import CallLimits, Policy
from espalier.rollout.recording.dialects import RequestDialects
from espalier.rollout.recording.recorder import Recorder
from tests.benchmarks.recording import compared, is_within
from tests.benchmarks.recording_endpoints import Unrecorded
from tests.factories.tiny import tiny_dialect
from tests.fakes.scripted_engine import ScriptedEngine
from tests.unit.rollout.recording.recorded import ANSWER, CALL

LIMITS = CallLimits(max_tokens=256, max_answer_tokens=64, max_calls=8, call_timeout_s=5.0)
PEER = {"median_ms": 80.0, "p99_ms": 200.0, "processor_ms": 1.0}


def policy():
    dialect = tiny_dialect()
    written = [dialect.text_ids(text) for text in (CALL, ANSWER)]
    return Policy(ScriptedEngine(dialect, written), RequestDialects(dialect))


async def prompts(attempt):
    """The prompts of two calls, the second with the tool's result."""
    messages = (Message(role="user", content="What is the currency of Lyon?"),)
    first = await attempt.answer(Asked(model="any", messages=messages))
    assert first.said.tool_calls
    result = Message(role="tool", content="France", call_id=first.said.tool_calls[0].call_id)
    second = await attempt.answer(Asked(model="any", messages=(*messages, first.said, result)))
    return first.prompt_ids, second.prompt_ids


def test_the_peer_reads_the_same_and_keeps_nothing():
    recorded, peer = Recorder(policy(), LIMITS).begin(), Unrecorded(policy(), LIMITS)
    assert asyncio.run(prompts(recorded)) == asyncio.run(prompts(peer))
    assert (len(recorded.graph), len(peer.graph)) == (2, 0)


@pytest.mark.parametrize(
    ("median_ms", "p99_ms", "holds"),
    [(81.0, 202.0, True), (70.0, 100.0, True), (81.1, 200.0, False), (80.0, 202.1, False)],
)
def test_recording_adds_one_millisecond_or_one_percent(median_ms, p99_ms, holds):
    recorded = {"median_ms": median_ms, "p99_ms": p99_ms, "processor_ms": 9.0}
    assert is_within(compared(recorded, PEER)) is holds
