import asyncio

import pytest

from espalier.config import VllmConfig
from espalier.records import EngineError, HungError
from espalier.rollout.engines.vllm import VllmServerEngine
from espalier.rollout.engines.vllm_server import VllmClient
from tests.fakes.vllm_double import completion
from tests.unit.rollout.vllm_play import StopsAtOneId, engine_of, play, sample_once


def test_broken_connections_and_server_errors_are_tried_again(server, policy_dir):
    server.answers["/weight_info"] = [("break", None), (503, {"error": "starting"})]
    action = play(engine_of(server), policy_dir, sample_once())
    assert action.token_ids


def test_a_failing_server_is_given_up_with_its_message(server, policy_dir):
    server.answers["/weight_info"] = [(500, {"error": "EngineCore died"})] * 3
    with pytest.raises(EngineError, match=r"3 times.*EngineCore died"):
        asyncio.run(engine_of(server).load_weights(policy_dir, 1))


def test_pauses_double_up_to_eight_seconds(server, pauses):
    server.answers["/v1/models"] = [(503, {})] * 6
    config = VllmConfig(url=server.url, attempts=7)

    async def asked():
        client = VllmClient(config, connections=1)
        await client.call("GET", "/v1/models")
        await client.close()

    asyncio.run(asked())
    assert pauses == [0.5, 1, 2, 4, 8, 8]


def test_an_unreachable_server_is_awaited_and_then_named(policy_dir):
    config = VllmConfig(url="http://127.0.0.1:9", ready_timeout_s=0.05)
    engine = VllmServerEngine(config, StopsAtOneId(), max_rows=1)
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9: .*0\.05 s"):
        asyncio.run(engine.load_weights(policy_dir, 0))


def test_a_slow_answer_ends_with_the_time_limit(server, policy_dir):
    server.answers["/v1/models"] = [("slow", 0.5)]
    with pytest.raises(EngineError, match=r"0\.1 s"):
        asyncio.run(engine_of(server, request_timeout_s=0.1).load_weights(policy_dir, 1))


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/reset_prefix_cache"])
def test_an_exchange_of_weights_that_hangs_is_named(server, policy_dir, path):
    server.answers[path] = [("slow", 2.0)]
    with pytest.raises(HungError, match=f"version 7 .*{path}.* 1 s"):
        asyncio.run(engine_of(server, exchange_timeout_s=1.0).load_weights(policy_dir, 7))


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"request_timeout_s": 0.6}, EngineError),
        ({"request_timeout_s": 1.5, "exchange_timeout_s": 1.0}, HungError),
    ],
)
def test_the_request_that_hangs_first_is_named(server, policy_dir, limits, error):
    server.answers["/reset_prefix_cache"] = server.answers["/resume"] = [("slow", 2.0)] * 2
    with pytest.raises(error, match="/reset_prefix_cache") as raised:
        asyncio.run(engine_of(server, **limits).load_weights(policy_dir, 7))
    assert "/resume" not in str(raised.value)
    assert type(raised.value) is error


def test_a_failing_exchange_says_which_weights(server, policy_dir):
    server.answers["/pause"] = [("slow", 0.5)]
    with pytest.raises(EngineError, match=r"version 7: .*/pause.*0\.1 s"):
        asyncio.run(engine_of(server, request_timeout_s=0.1).load_weights(policy_dir, 7))


def test_a_server_of_another_model_is_refused(server, policy_dir):
    with pytest.raises(EngineError, match=r"policy.*'judge'"):
        asyncio.run(engine_of(server, model="judge").load_weights(policy_dir, 1))


def test_a_server_without_dev_mode_says_how_to_start_it(server, policy_dir):
    server.answers["/collective_rpc"] = [(404, {"detail": "Not Found"})]
    with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1"):
        asyncio.run(engine_of(server).load_weights(policy_dir, 1))


def test_raw_log_probs_are_refused(server, policy_dir):
    raw = completion({"prompt": [0, 0], "seed": 0, "max_tokens": 1, "top_k": 0}, -3.0)
    server.answers["/v1/completions"] = [(200, raw)]
    with pytest.raises(EngineError, match="processed_logprobs"):
        play(engine_of(server), policy_dir, sample_once())


def _changed(**changes):
    answer = completion({"prompt": [1], "seed": 0, "max_tokens": 2})
    answer["choices"][0] |= changes
    return answer


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (_changed(logprobs=None), "no log-probs"),
        (_changed(logprobs={"token_logprobs": [None, -1.0], "top_logprobs": []}), "no log-probs"),
        (_changed(token_ids=None), "no token ids"),
        (_changed(token_ids=["a", "b"]), "no token ids"),
        (_changed(token_ids=[1, 2, 3]), "3 token ids .*2 log-probs"),
        (_changed(finish_reason="abort"), "off"),
        ({"choices": "none"}, "protocol"),
        (_changed() | {"model": "other"}, "'other'"),
        (b"<html>", "not JSON"),
        ([1, 2], "JSON object"),
    ],
)
def test_an_answer_that_cannot_be_trusted_is_refused(server, policy_dir, answer, complaint):
    async def spoiled(session):
        server.answers["/v1/completions"] = [(200, answer)]
        await session.sample(max_tokens=2)

    with pytest.raises(EngineError, match=complaint):
        play(engine_of(server), policy_dir, spoiled)


def test_the_key_goes_to_the_server_and_into_no_message(server, policy_dir, tmp_path, caplog):
    key_file = tmp_path / "key"
    key_file.write_text("s3cret\n")
    server.answers["/weight_info"] = [(401, {"error": "Unauthorized"})]
    engine = engine_of(server, key_file=key_file)
    with caplog.at_level("DEBUG"), pytest.raises(EngineError, match="key_file") as raised:
        asyncio.run(engine.load_weights(policy_dir, 1))
    assert {key for _, _, key in server.seen} == {"Bearer s3cret"}
    assert "s3cret" not in caplog.text + str(raised.value) + repr(raised.value.__cause__)


def test_a_key_file_that_is_not_there_is_named(server, policy_dir, tmp_path):
    with pytest.raises(EngineError, match="nokey"):
        asyncio.run(engine_of(server, key_file=tmp_path / "nokey").load_weights(policy_dir, 1))
