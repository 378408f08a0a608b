import asyncio
import math

import pytest

from espalier.records import EngineError, PolicyError
from espalier.rollout.engines.engine import KindChoice, Sampling
from tests.fakes.vllm_double import KIND_IDS, STOP_ID, THOUGHT_ID, running
from tests.unit.rollout.vllm_play import engine_of, play, policy_at, sample_once


def test_an_action_is_the_sampled_ids_until_a_stop(server, policy_dir):
    action = play(engine_of(server), policy_dir, sample_once())
    assert action.token_ids[-1] == STOP_ID
    assert action.stopped
    assert action.logprobs == (-0.25,) * len(action.token_ids)


def test_an_action_cut_by_its_length_is_not_stopped(server, policy_dir):
    engine = engine_of(server)
    whole = play(engine, policy_dir, sample_once())
    cut = play(engine, policy_dir, sample_once(len(whole.token_ids) - 1))
    assert cut.token_ids == whole.token_ids[:-1]
    assert not cut.stopped


def test_a_request_carries_ids_and_the_whole_of_the_sampling(server, policy_dir):
    sampling = Sampling(temperature=0.7, seed=4, top_p=0.9, top_k=20)
    play(engine_of(server), policy_dir, sample_once(), sampling)
    body = server.asked("/v1/completions")[-1]
    assert body["prompt"] == [1, 2, 3]
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.9, 20)
    assert body["stop_token_ids"] == [STOP_ID]
    assert body["stop"] == ["</answer>"]
    assert body["include_stop_str_in_output"]
    assert body["ignore_eos"]
    assert body["return_token_ids"]


def test_the_next_request_repeats_sampled_and_observed_ids_unchanged(server, policy_dir):
    async def two_turns(session):
        first = await session.sample(max_tokens=40)
        session.observe([4, 4])
        await session.sample(max_tokens=40)
        return first

    first = play(engine_of(server), policy_dir, two_turns)
    one, two = server.asked("/v1/completions")[-2:]
    assert two["prompt"] == [1, 2, 3, *first.token_ids, 4, 4]
    assert two["seed"] != one["seed"]
    assert two["cache_salt"] == one["cache_salt"] == server.version


def test_the_draw_depends_on_seed_and_position_only(server, policy_dir):
    engine = engine_of(server)
    for seed in (4, 4, 5):
        play(engine, policy_dir, sample_once(), Sampling(temperature=1.0, seed=seed))
    drawn = [body for body in server.asked("/v1/completions") if body["top_k"] != 1]
    assert drawn[0]["seed"] == drawn[1]["seed"] != drawn[2]["seed"]


def test_tokens_are_counted_by_the_servers_usage(server, policy_dir):
    engine = engine_of(server)
    action = play(engine, policy_dir, sample_once())
    sampled = len(action.token_ids)
    assert engine.counters.sampled == sampled
    assert engine.counters.unique == 3 + sampled
    assert engine.counters.forwarded == 3 - 1 + sampled - 1


def test_open_waits_for_a_free_slot(server, policy_dir):
    async def five():
        engine = engine_of(server)
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
def test_action_kinds_are_drawn_and_recorded_under_the_mixture(server, policy_dir, epsilon):
    server.logprob = math.log(0.5)
    choice = KindChoice(epsilon=epsilon, after_id=THOUGHT_ID, kind_ids=KIND_IDS)
    sampling = Sampling(temperature=1.0, seed=2, kind_choice=choice)
    action = play(engine_of(server), policy_dir, sample_once(), sampling)
    at = action.token_ids.index(THOUGHT_ID) + 1
    uniform = 0.5 if action.token_ids[at] in KIND_IDS else 0.0
    expected = math.log((1 - epsilon) * 0.5 + epsilon * uniform)
    assert action.logprobs[at] == pytest.approx(expected)
    assert action.token_ids[at] in KIND_IDS or epsilon < 1
    assert action.token_ids[-1] == STOP_ID


def test_loaded_weights_are_those_that_the_server_then_names(server, policy_dir, tmp_path):
    engine = engine_of(server)
    newer = policy_at(tmp_path / "newer", weights=b"others")
    asyncio.run(engine.load_weights(newer, 7))
    assert server.weights == str(newer)
    assert server.version.startswith("7-")
    assert engine.policy_version == 7
    order = [seen.split("?")[0].split()[1] for seen, _, _ in server.seen]
    assert order.index("/pause") < order.index("/collective_rpc") < order.index("/resume")
    assert order.index("/reset_prefix_cache") < order.index("/resume")


def test_a_policy_of_another_shape_is_not_loaded(server, tmp_path):
    wider = policy_at(tmp_path / "wider", hidden_size=64)
    with pytest.raises(PolicyError, match="hidden_size"):
        asyncio.run(engine_of(server).load_weights(wider, 1))
    assert server.weights != str(wider)


def test_a_directory_without_weights_is_not_loaded(server, tmp_path):
    with pytest.raises(PolicyError, match=tmp_path.name):
        asyncio.run(engine_of(server).load_weights(tmp_path, 1))


def test_a_cpu_server_refuses_to_exchange_tied_weights(tmp_path):
    started = policy_at(tmp_path / "started", tie_word_embeddings=True)
    newer = policy_at(tmp_path / "newer", weights=b"others", tie_word_embeddings=True)
    with running(started) as server:
        server.on_cpu = True
        engine = engine_of(server)
        asyncio.run(engine.load_weights(started, 0))
        with pytest.raises(PolicyError, match="tied"):
            asyncio.run(engine.load_weights(newer, 1))
        assert server.weights == started


def test_a_failed_exchange_lets_the_server_go_on(server, policy_dir):
    server.answers["/collective_rpc"] = [(500, {"error": "no such tensor"})] * 3
    with pytest.raises(EngineError, match="no such tensor"):
        asyncio.run(engine_of(server).load_weights(policy_dir, 1))
    assert server.seen[-1][0] == "POST /resume"


@pytest.mark.parametrize("exchanged", ["at the start", "in the middle"])
def test_weights_that_another_run_loaded_are_noticed(server, policy_dir, exchanged):
    async def episode():
        engine = engine_of(server)
        await engine.load_weights(policy_dir, 1)
        if exchanged == "at the start":
            server.version = "3-another"
        async with engine.serving():
            server.version = "3-another"

    with pytest.raises(EngineError, match="'3-another'"):
        asyncio.run(episode())


def test_nothing_is_sampled_before_a_policy_is_loaded(server):
    async def serve():
        async with engine_of(server).serving():
            pass

    with pytest.raises(EngineError, match="load_weights"):
        asyncio.run(serve())
