"""The recorder in front of a vLLM server: what the server wrote is what is recorded."""

import asyncio

from espalier.config import VllmConfig
from espalier.rollout.engines.vllm import VllmServerEngine
from tests.fakes.vllm_double import running
from tests.unit.interop.recording.recorded import QUESTION, Recorded, asked
from tests.unit.rollout.vllm_play import policy_at


def test_calls_are_recorded_as_the_server_answered_them(tmp_path):
    with running(tmp_path) as double:
        config = VllmConfig(urls=(double.url,), attempts=3, ready_timeout_s=5, request_timeout_s=5)
        recorded = Recorded()
        engine = VllmServerEngine(config, recorded.dialect, max_rows=4, backoff_s=0.001)
        recorded = Recorded(engine=engine)

        async def play():
            await engine.load_weights(policy_at(tmp_path / "policy"), 6)
            async with engine.serving():
                attempt = recorded.recorder.begin()
                async with recorded.client(attempt) as client:
                    first = await asked(client, QUESTION, max_tokens=3)
                    await asked(client, QUESTION, first, QUESTION, max_tokens=3)
            return attempt.graph

        graph = asyncio.run(play())
        sent = [body["prompt"] for body in double.asked("/v1/completions") if "seed" in body][-2:]
    assert [list(call.prompt_ids) for call in graph.calls] == sent
    assert graph.parents() == [None, 0]
    assert {call.policy_version for call in graph.calls} == {6}
    assert all(set(call.logprobs) == {-0.25} for call in graph.calls)
