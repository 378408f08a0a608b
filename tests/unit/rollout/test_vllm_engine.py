import asyncio
import json
import math

import pytest

from espalier.artifacts import EngineError, PolicyError
from espalier.config import VllmConfig
from espalier.rollout.engines.engine import KindChoice, Sampling
from espalier.rollout.engines.vllm import VllmEngine
from tests.unit.rollout.vllm_double import KIND_IDS, STOP_ID, THOUGHT_ID, completion, running


class _StopsAtOneId:
    stop_ids = frozenset({STOP_ID})
    stop_texts = ("</answer>",)

    def ends_action(self, action_ids):
        return action_ids[-1] == STOP_ID


@pytest.fixture
def policy_dir(tmp_path):
    return _policy(tmp_path / "policy")


@pytest.fixture
def server(policy_dir):
    with running(policy_dir) as double:
        yield double


def _policy(directory, weights=b"weights", **changes):
    directory.mkdir()
    shape = {"hidden_size": 32, "tie_word_embeddings": False, "transformers_version": "5"} | changes
    (directory / "config.json").write_text(json.dumps(shape))
    (directory / "model.safetensors").write_bytes(weights)
    return directory


def _engine(server, **changes):
    settings = {"url": server.url, "attempts": 3, "ready_timeout_s": 5, "request_timeout_s": 5}
    config = VllmConfig(**(settings | changes))
    return VllmEngine(config, _StopsAtOneId(), max_rows=4, backoff_s=0.001)


def _play(engine, policy_dir, script, sampling=None):
    async def play():
        await engine.load_weights(policy_dir, 1)
        async with engine.serving():
            session = await engine.open([1, 2, 3], sampling or Sampling(temperature=0.7, seed=4))
            result = await script(session)
            session.close()
            return result

    return asyncio.run(play())


def _sample(max_tokens=40):
    return lambda session: session.sample(max_tokens=max_tokens)


def test_an_action_is_the_ids_that_the_server_sampled_up_to_the_stop_id(server, policy_dir):
    action = _play(_engine(server), policy_dir, _sample())
    assert action.token_ids[-1] == STOP_ID
    assert action.stopped
    assert action.logprobs == (-0.25,) * len(action.token_ids)


def test_an_action_cut_by_its_length_is_not_stopped(server, policy_dir):
    engine = _engine(server)
    whole = _play(engine, policy_dir, _sample())
    cut = _play(engine, policy_dir, _sample(len(whole.token_ids) - 1))
    assert cut.token_ids == whole.token_ids[:-1]
    assert not cut.stopped


def test_a_request_carries_ids_and_the_whole_of_the_sampling(server, policy_dir):
    sampling = Sampling(temperature=0.7, seed=4, top_p=0.9, top_k=20)
    _play(_engine(server), policy_dir, _sample(), sampling)
    body = server.asked("/v1/completions")[-1]
    assert body["prompt"] == [1, 2, 3]
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.9, 20)
    assert body["stop_token_ids"] == [STOP_ID]
    assert body["stop"] == ["</answer>"]
    assert body["include_stop_str_in_output"]
    assert body["ignore_eos"]
    assert body["return_token_ids"]


def test_the_next_request_holds_what_was_sampled_and_observed_as_it_was(server, policy_dir):
    async def two_turns(session):
        first = await session.sample(max_tokens=40)
        session.observe([4, 4])
        await session.sample(max_tokens=40)
        return first

    first = _play(_engine(server), policy_dir, two_turns)
    one, two = server.asked("/v1/completions")[-2:]
    assert two["prompt"] == [1, 2, 3, *first.token_ids, 4, 4]
    assert two["seed"] != one["seed"]
    assert two["cache_salt"] == one["cache_salt"] == server.version


def test_the_draw_depends_on_seed_and_position_only(server, policy_dir):
    engine = _engine(server)
    for seed in (4, 4, 5):
        _play(engine, policy_dir, _sample(), Sampling(temperature=1.0, seed=seed))
    drawn = [body for body in server.asked("/v1/completions") if body["top_k"] != 1]
    assert drawn[0]["seed"] == drawn[1]["seed"] != drawn[2]["seed"]


def test_work_is_counted_as_the_server_tells_it(server, policy_dir):
    engine = _engine(server)
    action = _play(engine, policy_dir, _sample())
    sampled = len(action.token_ids)
    assert engine.counters.sampled == sampled
    assert engine.counters.unique == 3 + sampled
    assert engine.counters.forwarded == 3 - 1 + sampled - 1


def test_open_waits_for_a_free_slot(server, policy_dir):
    async def five():
        engine = _engine(server)
        await engine.load_weights(policy_dir, 1)
        async with engine.serving():
            sampling = Sampling(temperature=1.0, seed=0)
            sessions = [await engine.open([1], sampling) for _ in range(4)]
            waiting = asyncio.create_task(engine.open([1], sampling))
            await asyncio.sleep(0.01)
            waited = not waiting.done()
            sessions[0].close()
            sessions[0].close()
            await waiting
            return waited

    assert asyncio.run(five())


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 0.25])
def test_a_choice_of_kind_is_drawn_from_the_mixture_and_recorded_as_such(
    server, policy_dir, epsilon
):
    server.logprob = math.log(0.5)
    choice = KindChoice(epsilon=epsilon, after_id=THOUGHT_ID, kind_ids=KIND_IDS)
    sampling = Sampling(temperature=1.0, seed=2, kind_choice=choice)
    action = _play(_engine(server), policy_dir, _sample(), sampling)
    at = action.token_ids.index(THOUGHT_ID) + 1
    uniform = 0.5 if action.token_ids[at] in KIND_IDS else 0.0
    expected = math.log((1 - epsilon) * 0.5 + epsilon * uniform)
    assert action.logprobs[at] == pytest.approx(expected)
    assert action.token_ids[at] in KIND_IDS or epsilon < 1
    assert action.token_ids[-1] == STOP_ID


def test_loaded_weights_are_those_that_the_server_then_names(server, policy_dir, tmp_path):
    engine = _engine(server)
    newer = _policy(tmp_path / "newer", weights=b"others")
    asyncio.run(engine.load_weights(newer, 7))
    assert server.weights == str(newer)
    assert server.version.startswith("7-")
    assert engine.policy_version == 7
    order = [seen.split("?")[0].split()[1] for seen, _, _ in server.seen]
    assert order.index("/pause") < order.index("/collective_rpc") < order.index("/resume")
    assert order.index("/reset_prefix_cache") < order.index("/resume")


def test_a_policy_of_another_shape_is_not_loaded(server, tmp_path):
    wider = _policy(tmp_path / "wider", hidden_size=64)
    with pytest.raises(PolicyError, match="hidden_size differ"):
        asyncio.run(_engine(server).load_weights(wider, 1))
    assert server.weights != str(wider)


def test_a_directory_without_weights_is_not_loaded(server, tmp_path):
    with pytest.raises(PolicyError, match="not a policy directory"):
        asyncio.run(_engine(server).load_weights(tmp_path, 1))


def test_a_server_on_a_cpu_keeps_a_tied_policy_only_as_it_was_started(tmp_path):
    started = _policy(tmp_path / "started", tie_word_embeddings=True)
    newer = _policy(tmp_path / "newer", weights=b"others", tie_word_embeddings=True)
    with running(started) as server:
        server.on_cpu = True
        engine = _engine(server)
        asyncio.run(engine.load_weights(started, 0))
        with pytest.raises(PolicyError, match="tied embeddings"):
            asyncio.run(engine.load_weights(newer, 1))
        assert server.weights == started


def test_a_failed_exchange_lets_the_server_go_on(server, policy_dir):
    server.answers["/collective_rpc"] = [(500, {"error": "no such tensor"})] * 3
    with pytest.raises(EngineError, match="no such tensor"):
        asyncio.run(_engine(server).load_weights(policy_dir, 1))
    assert server.seen[-1][0] == "POST /resume"


@pytest.mark.parametrize("exchanged", ["at the start", "in the middle"])
def test_weights_that_another_run_loaded_are_noticed(server, policy_dir, exchanged):
    async def play():
        engine = _engine(server)
        await engine.load_weights(policy_dir, 1)
        if exchanged == "at the start":
            server.version = "3-another"
        async with engine.serving():
            server.version = "3-another"

    with pytest.raises(EngineError, match="serves weights '3-another'"):
        asyncio.run(play())


def test_nothing_is_sampled_before_a_policy_is_loaded(server):
    async def serve():
        async with _engine(server).serving():
            pass

    with pytest.raises(EngineError, match="call load_weights first"):
        asyncio.run(serve())


def test_broken_connections_and_server_errors_are_tried_again(server, policy_dir):
    server.answers["/weight_info"] = [("break", None), (503, {"error": "starting"})]
    action = _play(_engine(server), policy_dir, _sample())
    assert action.token_ids


def test_a_server_that_keeps_failing_is_given_up_with_its_own_words(server, policy_dir):
    server.answers["/weight_info"] = [(500, {"error": "EngineCore died"})] * 3
    with pytest.raises(EngineError, match=r"failed 3 times.*EngineCore died"):
        asyncio.run(_engine(server).load_weights(policy_dir, 1))


def test_a_server_that_is_away_is_waited_for_and_then_named(policy_dir):
    config = VllmConfig(url="http://127.0.0.1:9", ready_timeout_s=0.05)
    engine = VllmEngine(config, _StopsAtOneId(), max_rows=1)
    with pytest.raises(EngineError, match=r"127.0.0.1:9: no healthy vLLM server after 0.05 s"):
        asyncio.run(engine.load_weights(policy_dir, 0))


def test_a_slow_answer_ends_with_the_time_limit(server, policy_dir):
    server.answers["/v1/models"] = [("slow", 0.5)]
    with pytest.raises(EngineError, match=r"no answer within 0.1 s"):
        asyncio.run(_engine(server, request_timeout_s=0.1).load_weights(policy_dir, 1))


def test_a_server_of_another_model_is_refused(server, policy_dir):
    with pytest.raises(EngineError, match=r"serves policy, not 'judge'.*--served-model-name"):
        asyncio.run(_engine(server, model="judge").load_weights(policy_dir, 1))


def test_a_server_without_dev_mode_says_how_to_start_it(server, policy_dir):
    server.answers["/collective_rpc"] = [(404, {"detail": "Not Found"})]
    with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1"):
        asyncio.run(_engine(server).load_weights(policy_dir, 1))


def test_raw_log_probs_are_refused(server, policy_dir):
    raw = completion({"prompt": [0, 0], "seed": 0, "max_tokens": 1, "top_k": 0}, -3.0)
    server.answers["/v1/completions"] = [(200, raw)]
    with pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"):
        _play(_engine(server), policy_dir, _sample())


def _changed(**changes):
    answer = completion({"prompt": [1], "seed": 0, "max_tokens": 2})
    answer["choices"][0] |= changes
    return answer


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (_changed(logprobs=None), "no log-probs of sampled tokens"),
        (_changed(logprobs={"token_logprobs": [None, -1.0], "top_logprobs": []}), "no log-probs"),
        (_changed(token_ids=None), "no token ids"),
        (_changed(token_ids=["a", "b"]), "no token ids"),
        (_changed(token_ids=[1, 2, 3]), "3 token ids came with 2 log-probs"),
        (_changed(finish_reason="abort"), "broke the completion off"),
        ({"choices": "none"}, "another protocol"),
        (_changed() | {"model": "other"}, "was answered by 'other'"),
        (b"<html>", "not JSON"),
        ([1, 2], "not a JSON object"),
    ],
)
def test_an_answer_that_cannot_be_trusted_is_refused(server, policy_dir, answer, complaint):
    async def spoiled(session):
        server.answers["/v1/completions"] = [(200, answer)]
        await session.sample(max_tokens=2)

    with pytest.raises(EngineError, match=complaint):
        _play(_engine(server), policy_dir, spoiled)


def test_the_key_goes_to_the_server_and_into_no_message(server, policy_dir, tmp_path, caplog):
    key_file = tmp_path / "key"
    key_file.write_text("s3cret\n")
    server.answers["/weight_info"] = [(401, {"error": "Unauthorized"})]
    engine = _engine(server, key_file=key_file)
    with caplog.at_level("DEBUG"), pytest.raises(EngineError, match="key_file") as raised:
        asyncio.run(engine.load_weights(policy_dir, 1))
    assert {key for _, _, key in server.seen} == {"Bearer s3cret"}
    assert "s3cret" not in caplog.text + str(raised.value) + repr(raised.value.__cause__)


def test_a_key_file_that_is_not_there_is_named(server, policy_dir, tmp_path):
    with pytest.raises(EngineError, match=r"nokey.*cannot be read"):
        asyncio.run(_engine(server, key_file=tmp_path / "nokey").load_weights(policy_dir, 1))
